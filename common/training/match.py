"""Exact match on held-out questions while training goes on: greedy, one token in a step, block by block, no cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from common.corpus.question import Question
from common.tokenizer import Tokenizer
from common.training.batches import ChatIds

_BLOCK_TOKENS = 32
_CANVAS_TOKENS = 96
_BATCH_CANVASES = 64

Rows = Callable[[Tensor], Tensor]
"""[batch, canvas] ids to [batch, canvas, vocabulary] logits, row j for position j."""


class HeldOutMatch:
    """Prompts and right answers as ids; every canvas is equally long, so that they go through in batches."""

    def __init__(self, questions: Sequence[Question], tokenizer: Tokenizer, chat: ChatIds) -> None:
        self._tasks = [question.task for question in questions]
        self._prompts = [chat.prompt(tokenizer, question.prompt) for question in questions]
        self._answers = [[*tokenizer.encode(question.answer), chat.eos] for question in questions]
        self._mask_id = tokenizer.mask_token_id
        self._eos = chat.eos

    @torch.no_grad()
    def shares(self, logits_of: Rows) -> dict[str, float]:
        """Share of each task's answers that come out right, token for token up to the end-of-text."""
        right: dict[str, list[bool]] = {task: [] for task in self._tasks}
        for first in range(0, len(self._prompts), _BATCH_CANVASES):
            part = slice(first, first + _BATCH_CANVASES)
            canvases = self._decode(self._prompts[part], logits_of)
            for task, prompt, answer, canvas in zip(
                self._tasks[part], self._prompts[part], self._answers[part], canvases.tolist(), strict=True
            ):
                right[task].append(canvas[len(prompt) : len(prompt) + len(answer)] == answer)
        return {task: sum(results) / len(results) for task, results in right.items()}

    def _decode(self, prompts: list[list[int]], logits_of: Rows) -> Tensor:
        canvas = torch.full((len(prompts), _CANVAS_TOKENS), self._mask_id, dtype=torch.int64)
        for row, prompt in zip(canvas, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        position = torch.arange(_CANVAS_TOKENS)[None, :] - torch.tensor([len(prompt) for prompt in prompts])[:, None]
        every = torch.arange(len(prompts))
        while True:
            masked = canvas == self._mask_id
            ended = ((canvas == self._eos) & (position >= 0)).int().cumsum(1) > 0
            open_ = masked & ~ended
            wanted = open_.any(1)
            if not wanted.any():
                return canvas
            active = every[wanted]
            first_block = torch.where(open_, position // _BLOCK_TOKENS, _CANVAS_TOKENS)[active].amin(1, keepdim=True)
            allowed = masked[active] & (position[active] // _BLOCK_TOKENS == first_block)
            logits = logits_of(canvas[active])
            logits[..., self._mask_id] = -torch.inf
            confidence, token = logits.float().softmax(-1).max(-1)
            chosen = confidence.masked_fill(~allowed, -1.0).argmax(1)
            canvas[active, chosen] = token[torch.arange(len(active)), chosen]

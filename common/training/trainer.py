"""The training loop: one batch, one step; a state on disk now and then; a report to whoever watches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from common.corpus.questions import held_out_questions
from common.tokenizer import load_tokenizer
from common.training.batches import Batch, BatchSource, ChatIds
from common.training.checkpoint_folder import write_tokenizer_and_config, write_weights
from common.training.match import HeldOutMatch
from common.training.network import Network
from common.training.noise import draw_noise
from common.training.optimizers import Optimizers
from common.training.recipe import Recipe
from common.training.state import load_state, save_state
from common.training.vocabulary import control_ids

_EXPECTED_ANSWER_TOKENS = 20.0
"""Scales the loss; only its ratio to the gradients' clipping matters."""
_HELD_OUT_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step's outcome. `match` (share of right held-out answers by task) is there after an examination only."""

    step: int
    loss: float
    canvas_tokens: int
    match: dict[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Steps between stops; at each the model answers `questions_per_task` held-out questions and is saved."""

    steps: int = 1000
    questions_per_task: int = 12


class Trainer:
    """Trains one model into `model_dir`; nothing but the recipe (and the machine's arithmetic) decides the weights."""

    def __init__(
        self, recipe: Recipe, *, pieces: list[str], model_dir: Path, intervals: Intervals, compiled: bool = False
    ) -> None:
        write_tokenizer_and_config(model_dir, recipe.shape, pieces)
        self._recipe = recipe
        self._dir = model_dir
        self._intervals = intervals
        self._tokenizer = load_tokenizer(model_dir)
        chat = ChatIds.of(control_ids(pieces), self._tokenizer.eos_token_id)
        self._first, self._last = (
            BatchSource(
                self._tokenizer,
                chat,
                mix=mix,
                seed=recipe.seed,
                batch_tokens=recipe.batch_tokens,
                chunk_questions=recipe.chunk_questions,
            )
            for mix in ("first", "last")
        )
        self.network = Network(recipe.shape, seed=recipe.seed)
        self._optimizers = Optimizers(self.network, recipe)
        self._rows: Callable[[Tensor], Tensor] = torch.compile(self.network) if compiled else self.network
        questions = held_out_questions(per_task=intervals.questions_per_task, seed=_HELD_OUT_SEED)
        self._match = HeldOutMatch(questions, self._tokenizer, chat)
        self._step = 0

    def resume(self) -> int:
        """Go on from the state in the folder; returns the steps done. Raises `ConfigError`, see `load_state`."""
        self._step = load_state(self._dir, recipe=self._recipe, network=self.network, optimizers=self._optimizers)
        return self._step

    def run(self, on_progress: Callable[[Progress], None], *, until_step: int | None = None) -> None:
        """Train up to `until_step` (default: to the end), then write state and weights."""
        last = self._recipe.steps if until_step is None else until_step
        batches = self._batches()
        while self._step < last:
            batch = next(batches)
            loss = self._train(batch)
            self._step += 1
            stops = self._step % self._intervals.steps == 0
            match = self.examine() if stops else None
            on_progress(Progress(step=self._step, loss=loss, canvas_tokens=batch.token_ids.size, match=match))
            if stops and self._step < last:
                self._save()
        self._save()

    def examine(self) -> dict[str, float]:
        """Exact match on held-out questions, by task."""
        return self._match.shares(self._logits)

    def _batches(self) -> Iterator[Batch]:
        """From the present step on."""
        done, first_steps = self._step, self._recipe.first_steps
        yield from itertools.islice(self._first.batches(done), max(0, first_steps - done))
        yield from self._last.batches(max(0, done - first_steps))

    def _save(self) -> None:
        save_state(self._dir, recipe=self._recipe, network=self.network, optimizers=self._optimizers, step=self._step)
        write_weights(self._dir, self.network)

    def _train(self, batch: Batch) -> float:
        rng = np.random.default_rng((self._recipe.seed, self._step))
        noise = draw_noise(
            rng,
            prompt_tokens=batch.prompt_tokens,
            answer_tokens=batch.answer_tokens,
            canvas_tokens=batch.token_ids.shape[1],
        )
        clean = torch.from_numpy(batch.token_ids)
        noisy = clean.masked_fill(torch.from_numpy(noise.masked), self._tokenizer.mask_token_id)
        weight = torch.from_numpy(noise.weight)
        picked = weight.flatten().nonzero().squeeze(1)
        with self._autocast():
            rows = self._rows(noisy).flatten(0, 1)
            # Of a shifted model the row before predicts a position; the first of a canvas is never generated.
            logits = self.network.head(rows[picked - int(self._recipe.shape.shifted)])
        losses = functional.cross_entropy(logits.float(), clean.flatten()[picked], reduction="none")
        loss = (losses * weight.flatten()[picked]).sum() / (len(clean) * _EXPECTED_ANSWER_TOKENS)
        torch.autograd.backward(loss)
        self._optimizers.step(self._step)
        return float(loss.detach())

    def _logits(self, token_ids: Tensor) -> Tensor:
        with self._autocast():
            logits: Tensor = self.network.head(self.network(token_ids))
        return logits.roll(1, dims=1) if self._recipe.shape.shifted else logits

    def _autocast(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self._recipe.half_precision)

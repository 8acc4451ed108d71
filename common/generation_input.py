"""A caller's generation request before and after its checks; one set of rules for the gateway and `generate --local`.

Nothing here computes: a bad request is refused with the name of its field before any forward runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from common.core.ids import RequestId
from common.core.params import (
    DEFAULT_BLOCK_LENGTH_TOKENS,
    DEFAULT_CONFIDENCE_THRESHOLD,
    CacheMode,
    ConfidenceThreshold,
    RevealStrategy,
    SamplingParams,
    default_seed,
)
from common.core.work import RequestSpec
from common.errors import BadSamplingParams, InvalidPrompt, TooLong
from common.model_config import ModelConfig
from common.prompt import ChatMessage, PromptFormat, check_messages, check_unicode

MAX_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationInput:
    """What a caller asked for, unchecked. The prompt is `text`, `token_ids` or `messages`, the others are None.

    `prompt_format` says how `text` is put to the model. `seed` None: derived from the request's content.
    """

    text: str | None
    token_ids: tuple[int, ...] | None
    max_tokens: int
    block_length_tokens: int = DEFAULT_BLOCK_LENGTH_TOKENS
    cache_mode: CacheMode = CacheMode.DUAL
    strategy: RevealStrategy = field(default_factory=lambda: ConfidenceThreshold(DEFAULT_CONFIDENCE_THRESHOLD))
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    messages: tuple[ChatMessage, ...] | None = None
    prompt_format: PromptFormat = PromptFormat.AUTO

    @property
    def prompt_field(self) -> str:
        """Name of the field that holds the prompt, for messages."""
        if self.messages is not None:
            return "chat.messages"
        return "prompt" if self.token_ids is None else "token_ids"

    def check(self) -> None:
        """Refuse what can be judged without the model; raises an `InvalidRequest` naming the field."""
        self._check_prompt_given()
        for name, value in (("max_tokens", self.max_tokens), ("block_length_tokens", self.block_length_tokens)):
            if value < 1:
                raise BadSamplingParams(name, f"must be at least 1, not {value}")
            if value > MAX_INT64:
                raise TooLong(name, f"{value} is beyond any model's canvas")
        self._sampling(0).validate()

    def to_spec(
        self,
        *,
        request_id: str,
        prompt_token_ids: Sequence[int],
        model: ModelConfig,
        tenant: str = "",
        priority: int = 0,
        deadline_s: float | None = None,
    ) -> RequestSpec:
        """The checked request with its seed resolved; `prompt_token_ids` is the tokenized prompt.

        Raises `InvalidPrompt`, `TooLong` or `BadSamplingParams`. Needs `check()` to have passed.
        """
        # Length first: it is known without looking at every id of what may be megabytes.
        self.check_length(len(prompt_token_ids), model)
        self._check_prompt_ids(prompt_token_ids, model)
        seed = default_seed(
            prompt_token_ids=prompt_token_ids,
            max_tokens=self.max_tokens,
            block_length_tokens=self.block_length_tokens,
        )
        return RequestSpec(
            request_id=RequestId(request_id),
            prompt_token_ids=tuple(prompt_token_ids),
            max_tokens=self.max_tokens,
            block_length_tokens=self.block_length_tokens,
            cache_mode=self.cache_mode,
            sampling=self._sampling(seed),
            ignore_eos=self.ignore_eos,
            tenant=tenant,
            priority=priority,
            deadline_s=deadline_s,
        )

    @property
    def _blocks(self) -> int:
        return -(-self.max_tokens // self.block_length_tokens)

    def _sampling(self, fallback_seed: int) -> SamplingParams:
        seed = fallback_seed if self.seed is None else self.seed
        return SamplingParams(strategy=self.strategy, temperature=self.temperature, seed=seed)

    def _check_prompt_given(self) -> None:
        if self.messages is not None:
            check_messages(self.messages, self.prompt_field)
            return
        if self.text is None and self.token_ids is None:
            raise InvalidPrompt("prompt", "is missing: give text, messages or token ids")
        if not self.text and not self.token_ids:
            raise InvalidPrompt(self.prompt_field, "is empty")
        if self.text is not None:
            check_unicode(self.text, "prompt")

    def _check_prompt_ids(self, prompt_token_ids: Sequence[int], model: ModelConfig) -> None:
        try:
            model.check_prompt(prompt_token_ids)
        except InvalidPrompt as error:
            raise InvalidPrompt(self.prompt_field, error.problem) from None

    def canvas_tokens(self, prompt_tokens: int) -> int:
        """Length of the canvas with a prompt of that length."""
        return prompt_tokens + self._blocks * self.block_length_tokens

    def check_length(self, prompt_tokens: int, model: ModelConfig) -> None:
        """Raise `TooLong` when no canvas of the model's holds a prompt of (at least) that length and its blocks."""
        max_canvas_tokens = model.max_canvas_tokens
        if prompt_tokens >= max_canvas_tokens:
            raise TooLong(
                self.prompt_field,
                f"is at least {prompt_tokens} tokens long, which leaves no room to generate: the model's longest "
                f"canvas is {max_canvas_tokens}",
            )
        if self.block_length_tokens > max_canvas_tokens:
            raise TooLong(
                "block_length_tokens",
                f"{self.block_length_tokens} is above the model's longest canvas of {max_canvas_tokens} tokens",
            )
        canvas = self.canvas_tokens(prompt_tokens)
        if canvas > max_canvas_tokens:
            raise TooLong(
                "max_tokens",
                f"{prompt_tokens} prompt tokens and {self._blocks} blocks of {self.block_length_tokens} make a canvas "
                f"of {canvas} tokens, above the model's longest of {max_canvas_tokens}",
            )

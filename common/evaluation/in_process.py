"""Answers from the engine in this process, many questions to the forward. Imports torch: import this module late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.core.defaults import DEFAULT_PAGE_SIZE_TOKENS
from common.core.work import RequestSpec
from common.corpus.question import Question
from common.engine.engine import Engine
from common.engine.generator import BatchGenerator, GenerationResult
from common.evaluation.answer import Answer
from common.evaluation.setting import Setting
from common.model_config import load_model_config
from common.prompt_encoding import encode_prompt
from common.text_codec import TextCodec, load_text_codec


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Where the engine runs. `dtype` None: by device; `batch_size`: questions to a forward."""

    model_dir: Path
    device: str
    dtype: str | None
    max_tokens: int
    batch_size: int


class EngineAnswerer:
    """One loaded model and the requests of a whole evaluation, all checked before any runs."""

    def __init__(
        self, generator: BatchGenerator, codec: TextCodec, specs: dict[tuple[Question, Setting], RequestSpec]
    ) -> None:
        self._generator = generator
        self._codec = codec
        self._specs = specs

    @classmethod
    def load(cls, options: EngineOptions, questions: Sequence[Question], settings: Sequence[Setting]) -> EngineAnswerer:
        """Load the model with pages for a whole batch of the longest canvas.

        Raises `CheckpointError`, `ConfigError`, or the `InvalidRequest` of a question that the model cannot hold.
        """
        codec = load_text_codec(options.model_dir)
        specs = _specs(options, codec, questions, settings)
        longest_pages = max(spec.pages(DEFAULT_PAGE_SIZE_TOKENS) for spec in specs.values())
        engine = Engine.load(
            options.model_dir,
            device=options.device,
            dtype=options.dtype,
            num_pages=longest_pages * options.batch_size,
            page_size_tokens=DEFAULT_PAGE_SIZE_TOKENS,
        )
        return cls(BatchGenerator(engine, max_batch_size=options.batch_size), codec, specs)

    def answer(self, questions: Sequence[Question], setting: Setting, *, on_answer: Callable[[], None]) -> list[Answer]:
        """See `Answerer.answer`; the questions and the setting are among those that it was loaded with."""
        specs = [self._specs[question, setting] for question in questions]
        answers: dict[RequestSpec, Answer] = {}
        for spec, result in self._generator.generate(specs):
            answers[spec] = self._answer(result)
            on_answer()
        return [answers[spec] for spec in specs]

    def _answer(self, result: GenerationResult) -> Answer:
        return Answer(
            token_ids=result.token_ids,
            text=self._codec.decode(result.token_ids),
            prefill_forwards=result.prefill_forwards,
            decode_forwards=result.decode_forwards,
            revealed_tokens=result.revealed_tokens,
        )


def _specs(
    options: EngineOptions, codec: TextCodec, questions: Sequence[Question], settings: Sequence[Setting]
) -> dict[tuple[Question, Setting], RequestSpec]:
    model = load_model_config(options.model_dir)
    specs = {}
    for number, question in enumerate(questions):
        for setting in settings:
            wanted = setting.ask(question.prompt, max_tokens=options.max_tokens)
            wanted.check()
            specs[question, setting] = wanted.to_spec(
                request_id=f"question-{number}", prompt_token_ids=encode_prompt(codec, wanted), model=model
            )
    return specs

"""Answers from a running cluster, several questions at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from common.cli.gateway_client import generate_at, request_of
from common.cli.interrupt import run_interruptible
from common.corpus.question import Question
from common.evaluation.answer import Answer
from common.evaluation.setting import Setting


class GatewayAnswerer:
    """The cluster behind the gateway `address` (host:port)."""

    def __init__(self, address: str, *, max_tokens: int, concurrency: int) -> None:
        self._address = address
        self._max_tokens = max_tokens
        self._concurrency = concurrency

    def answer(self, questions: Sequence[Question], setting: Setting, *, on_answer: Callable[[], None]) -> list[Answer]:
        """See `Answerer.answer`. The first failure ends it, with the other calls cancelled.

        Raises `WireError`, or `Interrupted` on Ctrl-C.
        """
        return run_interruptible(self._answer_all(questions, setting, on_answer))

    async def _answer_all(
        self, questions: Sequence[Question], setting: Setting, on_answer: Callable[[], None]
    ) -> list[Answer]:
        slots = asyncio.Semaphore(self._concurrency)

        async def ask(question: Question) -> Answer:
            async with slots:
                answer = await self._ask(question, setting)
            on_answer()
            return answer

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(question)) for question in questions]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _ask(self, question: Question, setting: Setting) -> Answer:
        request = request_of(setting.ask(question.prompt, max_tokens=self._max_tokens))
        output = await generate_at(self._address, request, timeout_s=None, on_text=lambda text: None)
        return Answer(
            token_ids=output.token_ids,
            text=output.text,
            prefill_forwards=output.prefill_forwards,
            decode_forwards=output.decode_forwards,
            revealed_tokens=None,
        )

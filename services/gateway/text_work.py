"""Text to token ids and back without stopping the gateway: long ones on threads, a few at once, the rest in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from common.committed import TextSink
from common.errors import Reason, WireError
from common.generation_input import GenerationInput
from common.prompt_encoding import encode_prompt, fewest_prompt_tokens
from common.text_codec import TextCodec

THREADS = 2
"""Long texts in work at once; one more would only take the others' cores."""

MAX_WAITING = 256
"""Long texts that may be here, in work or waiting for a thread."""

RETRY_AFTER_S = 1.0

# Below this a call of the codec is shorter than the hop to a thread.
_INLINE_CHARACTERS = 2048
_INLINE_TOKENS = 512

T = TypeVar("T")


class TextWork:
    """Runs a codec. Raises `WireError` QUEUE_FULL when too many long texts are here already.

    A caller that leaves takes its text out of the line; one that a thread is working on keeps that thread busy.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="text")
        self._here = 0

    @property
    def has_chat_template(self) -> bool:
        """See `TextCodec.has_chat_template`."""
        return self._codec.has_chat_template

    def fewest_prompt_tokens(self, wanted: GenerationInput) -> int:
        """See `common.prompt_encoding.fewest_prompt_tokens`."""
        return fewest_prompt_tokens(self._codec, wanted)

    def stream(self) -> TextSink:
        """See `TextCodec.stream`."""
        return self._codec.stream()

    async def encode_prompt(self, wanted: GenerationInput) -> Sequence[int]:
        """See `common.prompt_encoding.encode_prompt`."""
        turns = wanted.messages or ()
        if len(wanted.text or "") + sum(len(turn.content) for turn in turns) <= _INLINE_CHARACTERS:
            return encode_prompt(self._codec, wanted)
        return await self._on_a_thread(lambda: encode_prompt(self._codec, wanted))

    async def encode(self, text: str) -> list[int]:
        """See `TextCodec.encode`."""
        if len(text) <= _INLINE_CHARACTERS:
            return self._codec.encode(text)
        return await self._on_a_thread(lambda: self._codec.encode(text))

    async def decode(self, token_ids: list[int]) -> str:
        """See `TextCodec.decode`."""
        if len(token_ids) <= _INLINE_TOKENS:
            return self._codec.decode(token_ids)
        return await self._on_a_thread(lambda: self._codec.decode(token_ids))

    def close(self) -> None:
        """Take nothing more; what waits for a thread is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _on_a_thread(self, work: Callable[[], T]) -> T:
        if self._here >= MAX_WAITING:
            message = f"{self._here} long texts wait to be converted"
            raise WireError(Reason.QUEUE_FULL, message, retry_after_s=RETRY_AFTER_S)
        self._here += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._here -= 1

"""Long texts at the gateway: few at once, a bounded line, and none that could not fit."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from common.errors import Reason, WireError
from common.random_checkpoint import build_random_checkpoint
from common.text_codec import IdsOnly
from common.tokenizer import Tokenizer
from services.gateway.text_work import MAX_WAITING, THREADS, TextWork
from tests.gateway.running_gateway import running_gateway
from tests.gateway.scripted_scheduler import finished, play, queued, revealed_tokens, step

LONG = "x" * 3000


class GatedCodec(IdsOnly):
    """Encodes byte by byte, and slowly: every call is counted and waits until the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.calls = 0
        self._entered = threading.Semaphore(0)

    def encode(self, text: str) -> list[int]:
        self.calls += 1
        self._entered.release()
        assert self.gate.wait(20)
        return list(text.encode())

    async def until_entered(self, times: int) -> None:
        """Return once that many more calls have begun."""
        for _ in range(times):
            assert await asyncio.to_thread(self._entered.acquire, timeout=20)


async def test_a_few_long_texts_are_in_work_and_the_line_behind_them_is_bounded() -> None:
    codec = GatedCodec()
    work = TextWork(codec)
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(work.encode(LONG)) for _ in range(MAX_WAITING)]
        await codec.until_entered(THREADS)
        with pytest.raises(WireError) as caught:
            await work.encode(LONG)
        assert caught.value.reason is Reason.QUEUE_FULL
        assert caught.value.retry_after_s is not None
        assert codec.calls == THREADS
        # Whoever leaves the line makes room in it, and is never worked on.
        calls[-1].cancel()
        await asyncio.wait([calls[-1]])
        calls[-1] = tasks.create_task(work.encode(LONG))
        codec.gate.set()
    assert all(call.result() == list(LONG.encode()) for call in calls)
    assert codec.calls == MAX_WAITING
    work.close()


async def test_a_text_in_work_keeps_its_thread_when_its_caller_leaves() -> None:
    codec = GatedCodec()
    work = TextWork(codec)
    async with asyncio.TaskGroup() as tasks:
        left = [tasks.create_task(work.encode(LONG)) for _ in range(THREADS)]
        await codec.until_entered(THREADS)
        for call in left:
            call.cancel()
        await asyncio.wait(left)
        next_one = tasks.create_task(work.encode(LONG))
        await asyncio.sleep(0.1)
        assert codec.calls == THREADS
        codec.gate.set()
    assert len(next_one.result()) == len(LONG)
    work.close()


async def test_a_text_that_fits_no_canvas_is_never_tokenized(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: pytest.fail("it was tokenized"))
    reading = await client.generate(text="x" * 8_000_000)
    assert reading.error is not None
    assert (reading.error.reason, reading.error.field) == (Reason.TOO_LONG, "prompt")


async def test_a_request_has_its_place_before_it_is_tokenized(
    scheduler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_random_checkpoint(
        tmp_path / "m", n_layers=1, n_heads=1, n_kv_heads=1, hidden_size=8, mlp_size=8, max_canvas_tokens=8192
    )
    codec = GatedCodec()
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: codec.encode(text))
    scheduler.script(play(queued(), step(0, 0, revealed_tokens(b"abcd")), finished()))
    ready_file = tmp_path / "ready.json"
    async with running_gateway(tmp_path / "m", scheduler.address, ready_file, max_inflight_requests=1) as client:
        first = asyncio.create_task(client.generate(text=LONG))
        await codec.until_entered(1)
        refused = await client.generate(text=LONG)
        assert refused.error is not None and refused.error.reason is Reason.QUEUE_FULL
        assert codec.calls == 1
        codec.gate.set()
        assert (await first).text == "abcd"

"""Thousands of requests, one after the other: what the gateway holds stays what its settings say."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from typing import Any

from common.clock import ManualClock, MonotonicClock
from common.model_config import load_model_config
from common.text_codec import load_text_codec
from services.gateway.admission import Admission
from services.gateway.audit import Auditor
from services.gateway.kept_requests import KeptRequests
from services.gateway.request_body import RequestBody
from services.gateway.request_directory import RequestDirectory
from services.gateway.resume import ResumePolicy
from services.gateway.servicer import InferenceServicer
from services.gateway.text_work import TextWork
from tests.gateway.running_gateway import generate_request
from tests.gateway.scripted_scheduler import Response, finished, queued, revealed_tokens, step
from tests.gateway.transcripts import written

KEPT = 500


class InstantScheduler:
    """Finishes every request at once."""

    async def schedule(self, spec: Any, *, timeout_s: float | None) -> AsyncIterator[Response]:
        yield Response(events=[queued(), step(0, 0, revealed_tokens(b"abcd")), finished()])

    async def cancel(self, request_id: str) -> bool:
        raise AssertionError("nobody cancels")

    async def wait_until_serving(self, *, timeout_s: float) -> bool:
        return True


class Call:
    """What the servicer needs of a call's context."""

    def time_remaining(self) -> float | None:
        return None


async def test_ten_thousand_short_requests_leave_no_more_than_is_kept(model_dir) -> None:
    clock = MonotonicClock()
    work = TextWork(load_text_codec(model_dir))
    kept = KeptRequests(ttl_s=3600.0, max_requests=KEPT, max_bytes=2**40, clock=clock)
    admission = Admission(max_requests=100, max_tokens=10_000, clock=clock)
    blocks: list[int] = []
    async with RequestDirectory(kept=kept, new_text=work.stream, clock=clock) as requests:
        scheduler = InstantScheduler()
        auditor = Auditor(scheduler=scheduler, rate=0.0, eos_token_id=0)  # type: ignore[arg-type]  # its generator is all that is needed
        servicer = InferenceServicer(
            model=load_model_config(model_dir),
            text=work,
            scheduler=scheduler,  # type: ignore[arg-type]  # see above
            admission=admission,
            requests=requests,
            clock=clock,
            default_deadline_s=0.0,
            max_detach_grace_s=60.0,
            resume=ResumePolicy(),
            auditor=auditor,
        )

        async def ask() -> str:
            responses = [response async for response in servicer.Generate(generate_request(), Call())]  # type: ignore[arg-type]  # see above
            return "".join(response.committed.text for response in responses)

        # What was there before need not be gone over a hundred times.
        gc.freeze()
        for _ in range(100):
            assert set(await asyncio.gather(*(ask() for _ in range(100)))) == {"abcd"}
            assert requests.kept_requests <= KEPT
            gc.collect()
            blocks.append(sys.getallocatedblocks())
        gc.unfreeze()
        assert requests.live_requests == 0
        assert requests.kept_requests == KEPT
    assert (admission.inflight_requests, admission.inflight_tokens) == (0, 0)
    # Full after 500 requests; a thousandth of an object per request is noise.
    assert max(blocks[50:]) - max(blocks[10:50]) < 1000
    work.close()


def test_bytes_are_bounded_too_and_the_oldest_go_first() -> None:
    clock = ManualClock()
    size = written(b"x" * 1000, []).compacted().size_bytes
    assert size > 1000
    kept = KeptRequests(ttl_s=10.0, max_requests=100, max_bytes=3 * size, clock=clock)
    for number in range(5):
        kept.keep(str(number), RequestBody({}), written(b"x" * 1000, []))
        assert kept.size_bytes <= 3 * size
    assert [kept.get(str(number)) is not None for number in range(5)] == [False, False, True, True, True]
    kept.keep("too large", RequestBody({}), written(b"x" * 10_000_000, []))
    assert (len(kept), kept.size_bytes) == (0, 0)


def test_each_is_kept_for_its_time_and_no_longer() -> None:
    clock = ManualClock()
    kept = KeptRequests(ttl_s=10.0, max_requests=100, max_bytes=2**40, clock=clock)
    kept.keep("early", RequestBody({}), written(b"x", []))
    clock.advance(6.0)
    kept.keep("late", RequestBody({}), written(b"x", []))
    clock.advance(3.9)
    assert kept.get("early") is not None
    clock.advance(0.1)
    assert kept.get("early") is None and kept.get("late") is not None
    clock.advance(6.0)
    kept.forget_old()
    assert (len(kept), kept.size_bytes) == (0, 0)

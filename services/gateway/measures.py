"""What the gateway measures: requests by how they ended, and what those that ended well took."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from common.clock import Clock
from common.core.work import FinishReason
from common.errors import Reason, WireError
from common.metrics import catalogue as metrics
from sangam.v1 import inference_pb2
from services.gateway.admission import Admission

SAMPLE_INTERVAL_S = 0.5
"""Time between two samples of what is in flight."""


async def sample_forever(admission: Admission, clock: Clock) -> NoReturn:
    """Show what is in flight; ends by cancellation."""
    metrics.REPLAY_DIVERGENCE.add(0)
    while True:
        metrics.INFLIGHT_REQUESTS.show(admission.inflight_requests)
        metrics.INFLIGHT_TOKENS.show(admission.inflight_tokens)
        await clock.sleep(SAMPLE_INTERVAL_S)


@contextmanager
def failures_counted() -> Iterator[None]:
    """Count the request that the block runs at the scheduler, if it ends badly; `count_finished` counts the others."""
    try:
        yield
    except BaseException as error:
        metrics.REQUESTS.add(outcome=_outcome(error))
        raise


def count_finished(finish: FinishReason, usage: inference_pb2.Usage) -> None:
    """Count a request that ended well."""
    metrics.REQUESTS.add(outcome=finish.value)
    metrics.TIME_TO_FIRST_COMMIT_S.record(usage.time_to_first_commit_s)
    metrics.REQUEST_S.record(usage.total_s)
    metrics.PROMPT_TOKENS.add(usage.prompt_tokens)
    metrics.COMPLETION_TOKENS.add(usage.completion_tokens)


def _outcome(error: BaseException) -> str:
    match error:
        case WireError():
            return error.reason.value
        case asyncio.CancelledError() | GeneratorExit():
            return Reason.CANCELLED.value
        case _:
            return Reason.INTERNAL.value

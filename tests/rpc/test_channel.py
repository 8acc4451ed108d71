"""Which calls a channel repeats by itself: the idempotent ones, for UNAVAILABLE only."""

from __future__ import annotations

import grpc
import pytest

from common.errors import Reason, WireError
from sangam.v1 import inference_pb2
from tests.rpc.scripted import Loopback, ScriptedGateway, committed


class FailingFirst:
    """Handlers that fail with `reason` until they have been called `failures` times."""

    def __init__(self, reason: Reason, failures: int) -> None:
        self.reason = reason
        self.failures = failures
        self.calls = 0

    def _count(self) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            raise WireError(self.reason, "not yet")

    async def unary(self, context):
        self._count()

    async def stream(self, context):
        self._count()
        yield committed("late")


async def test_an_idempotent_call_is_repeated_while_the_peer_is_unavailable():
    failing = FailingFirst(Reason.PEER_LOST, failures=2)
    async with Loopback(ScriptedGateway(unary=failing.unary)) as loopback:
        answer = await loopback.get_model(timeout=20)
    assert answer == inference_pb2.GetModelResponse(model_id="scripted")
    assert failing.calls == 3


async def test_repeating_ends():
    failing = FailingFirst(Reason.PEER_LOST, failures=100)
    async with Loopback(ScriptedGateway(unary=failing.unary)) as loopback:
        with pytest.raises(grpc.aio.AioRpcError):
            await loopback.get_model(timeout=20)
    assert failing.calls == 4


async def test_another_code_is_not_repeated():
    failing = FailingFirst(Reason.QUEUE_FULL, failures=1)
    async with Loopback(ScriptedGateway(unary=failing.unary)) as loopback:
        with pytest.raises(grpc.aio.AioRpcError):
            await loopback.get_model(timeout=20)
    assert failing.calls == 1


async def test_a_call_that_computes_is_never_repeated_by_the_channel():
    failing = FailingFirst(Reason.PEER_LOST, failures=1)
    async with Loopback(ScriptedGateway(stream=failing.stream)) as loopback:
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in loopback.generate(timeout=20):
                pass
    assert failing.calls == 1

"""What a client sees when a handler fails: rich statuses, no exception text, no call without an end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

import grpc
import pytest

from common.errors import BadSamplingParams, Reason, WireError
from common.rpc.status import wire_error
from common.telemetry import current_trace_id, setup_telemetry, trace_metadata, tracer
from sangam.v1 import inference_pb2
from tests.metrics.measured import distribution_of, value_of
from tests.rpc.scripted import SERVICE_NAME, Loopback, ScriptedGateway, committed, until

SECRET = "password=hunter2"


def raising(error: BaseException):
    async def unary(context):
        raise error

    return unary


def streaming_then_raising(error: BaseException):
    async def stream(context):
        yield committed("before")
        raise error

    return stream


async def unary_error(error: BaseException) -> grpc.aio.AioRpcError:
    async with Loopback(ScriptedGateway(unary=raising(error))) as loopback:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await loopback.get_model(timeout=10)
    return caught.value


async def stream_error(error: BaseException) -> grpc.aio.AioRpcError:
    received = []
    async with Loopback(ScriptedGateway(stream=streaming_then_raising(error))) as loopback:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for message in loopback.generate(timeout=10):
                received.append(message.committed.text)
    assert received == ["before"]
    return caught.value


CALLS = pytest.mark.parametrize("call", [unary_error, stream_error])


@CALLS
async def test_overload_arrives_with_reason_metadata_and_retry_delay(call):
    error = await call(WireError(Reason.QUEUE_FULL, "queue full", metadata={"limit": "9"}, retry_after_s=1.5))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    seen = wire_error(error)
    assert (seen.reason, seen.message, seen.metadata, seen.retry_after_s) == (
        Reason.QUEUE_FULL,
        "queue full",
        {"limit": "9"},
        1.5,
    )


@CALLS
async def test_bad_field_arrives_as_its_own_class_with_its_name(call):
    error = await call(BadSamplingParams("temperature", "must be 0 or above, not -1"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    seen = wire_error(error)
    assert isinstance(seen, BadSamplingParams)
    assert (seen.field, seen.problem) == ("temperature", "must be 0 or above, not -1")
    assert str(seen) == "temperature: must be 0 or above, not -1"


@CALLS
async def test_unexpected_exception_shows_a_trace_id_and_no_text(call, caplog):
    with caplog.at_level(logging.ERROR, logger="common.rpc.interceptors"):
        error = await call(RuntimeError(SECRET))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert SECRET not in error.details()
    assert not any(
        SECRET.encode() in (value if isinstance(value, bytes) else value.encode())
        for _, value in error.trailing_metadata()
    )
    seen = wire_error(error)
    assert seen.reason is Reason.INTERNAL
    assert len(seen.metadata["trace_id"]) == 32
    assert SECRET in caplog.text and seen.metadata["trace_id"] in caplog.text


@CALLS
async def test_errors_of_a_task_group_count_as_their_first_wire_error(call):
    group = ExceptionGroup("tasks", [WireError(Reason.NO_KV_PAGES, "full"), WireError(Reason.PEER_LOST, "gone")])
    assert wire_error(await call(group)).reason is Reason.NO_KV_PAGES


@CALLS
async def test_a_bug_beside_a_wire_error_stays_a_bug(call):
    group = ExceptionGroup("tasks", [WireError(Reason.NO_KV_PAGES, "full"), RuntimeError(SECRET)])
    assert wire_error(await call(group)).reason is Reason.INTERNAL


@CALLS
async def test_a_cancellation_nobody_asked_for_still_ends_the_call(call):
    assert wire_error(await call(asyncio.CancelledError())).reason is Reason.CANCELLED


@pytest.mark.parametrize("abort_code", [grpc.StatusCode.NOT_FOUND])
async def test_a_handlers_own_abort_passes_unchanged(abort_code):
    async def unary(context):
        await context.abort(abort_code, "mine")

    async with Loopback(ScriptedGateway(unary=unary)) as loopback:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await loopback.get_model(timeout=10)
    assert (caught.value.code(), caught.value.details()) == (abort_code, "mine")


async def test_unknown_method_is_unimplemented():
    async with Loopback(ScriptedGateway()) as loopback:
        call: Any = loopback.channel.unary_unary("/sangam.v1.InferenceService/Nothing")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_client_cancel_reaches_a_unary_handler_as_cancelled_error():
    started = asyncio.Event()
    seen: asyncio.Queue[type[BaseException]] = asyncio.Queue()

    async def unary(context):
        started.set()
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            seen.put_nowait(type(error))
            raise

    async with Loopback(ScriptedGateway(unary=unary)) as loopback:
        call = loopback.stub.GetModel(inference_pb2.GetModelRequest())
        task = asyncio.ensure_future(call)
        async with asyncio.timeout(10):
            await started.wait()
            call.cancel()
            assert await seen.get() is asyncio.CancelledError
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("waiting_in", ["handler", "write"])
async def test_client_cancel_closes_a_stream_handler_in_its_own_task(waiting_in):
    """Also when it stands at `yield` behind a full flow-control window: left to the garbage collector, its `finally`
    would run later and in a foreign task, where task groups and timeouts around the `yield` break."""
    tasks: list[Any] = []

    async def stream(context):
        tasks.append(asyncio.current_task())
        try:
            while True:
                yield committed("x" * 100_000)
                if waiting_in == "handler":
                    await asyncio.Event().wait()
        finally:
            tasks.append(asyncio.current_task())

    async with Loopback(ScriptedGateway(stream=stream)) as loopback, asyncio.timeout(10):
        call = loopback.open_stream()
        await call.read()
        call.cancel()
        await until(lambda: len(tasks) == 2)
    assert tasks[0] is tasks[1]


async def test_streams_whose_clients_leave_log_nothing(caplog):
    async def stream(context):
        while True:
            yield committed("x" * 1000)
            await asyncio.sleep(0)

    gateway = ScriptedGateway(stream=stream)

    async def leave_after(messages: int) -> None:
        call = loopback.open_stream()
        for _ in range(messages):
            await call.read()
        call.cancel()

    async with Loopback(gateway) as loopback, asyncio.timeout(20):
        await asyncio.gather(*(leave_after(1 + number % 7) for number in range(60)))
        await until(lambda: gateway.streams_open == 0)
    assert caplog.records == []


async def test_handler_runs_in_the_callers_trace():
    setup_telemetry("test_rpc", "")
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def unary(context):
        seen.put_nowait(current_trace_id())

    async with Loopback(ScriptedGateway(unary=unary)) as loopback:
        with tracer("test").start_as_current_span("client") as span:
            await loopback.get_model(metadata=trace_metadata(), timeout=10)
    assert await seen.get() == f"{span.get_span_context().trace_id:032x}"


@pytest.mark.parametrize("method", ["GetModel", "Generate"])
async def test_bytes_that_are_no_message_are_the_clients_mistake_and_leave_no_traceback(method, caplog):
    async with Loopback(ScriptedGateway()) as loopback:
        channel: Any = loopback.channel
        path = f"/{SERVICE_NAME}/{method}"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            if method == "GetModel":
                await channel.unary_unary(path)(b"\xff" * 9, timeout=10)
            else:
                await channel.unary_stream(path)(b"\xff" * 9, timeout=10).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    seen = wire_error(caught.value)
    assert (seen.reason, str(seen)) == (Reason.INVALID_REQUEST, "message: is not a message of this call")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_bytes_that_are_no_message_end_a_stream_of_requests_after_the_good_ones():
    seen = []

    async def echo(requests, context):
        async for request in requests:
            seen.append(request.text)
            yield request

    message = inference_pb2.TokenizeRequest
    handler = grpc.stream_stream_rpc_method_handler(echo, message.FromString, message.SerializeToString)
    loopback = Loopback(ScriptedGateway())
    loopback.server.grpc.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Echo", {"Echo": handler}),)
    )
    async with loopback:
        requests = iter([message(text="a").SerializeToString(), b"\xff" * 9])
        channel: Any = loopback.channel
        call = channel.stream_stream("/test.Echo/Echo")(requests, timeout=10)
        answer = message.FromString(await call.read())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert (seen, answer.text) == (["a"], "a")
    assert wire_error(caught.value).reason is Reason.INVALID_REQUEST


async def counted(method: str, outcome: str, run: Awaitable[Any]) -> tuple[float, int]:
    """By how much the two instruments of a method grow while `run` runs."""

    def values() -> tuple[float, int]:
        calls = value_of("sangam_rpcs_total", method=method, outcome=outcome)
        return calls, distribution_of("sangam_rpc_s", method=method).count

    before = values()
    await run
    await until(lambda: values() != before)
    return values()[0] - before[0], values()[1] - before[1]


async def test_calls_are_counted_by_method_and_outcome():
    assert await counted("GetModel", "QUEUE_FULL", unary_error(WireError(Reason.QUEUE_FULL, "full"))) == (1, 1)
    assert await counted("Generate", "INTERNAL", stream_error(KeyError("a bug"))) == (1, 1)

    async def good() -> None:
        async with Loopback(ScriptedGateway()) as loopback:
            await loopback.get_model(timeout=10)

    assert await counted("GetModel", "OK", good()) == (1, 1)


async def test_a_client_that_leaves_counts_as_cancelled():
    async def forever(context):
        yield committed("before")
        await asyncio.Event().wait()

    async def leave() -> None:
        async with Loopback(ScriptedGateway(stream=forever)) as loopback:
            call = loopback.open_stream(timeout=10)
            await call.read()
            call.cancel()

    assert await counted("Generate", "CANCELLED", leave()) == (1, 1)

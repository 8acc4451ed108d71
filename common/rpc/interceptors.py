"""The one interceptor of every server: trace span around the call, errors as rich statuses, nothing else on the wire.

gRPC would send an uncaught exception's text to the client as UNKNOWN; here a WireError becomes its status, and
anything unexpected becomes INTERNAL with a fixed text and a trace id under which the log has the traceback. Bytes that
are no message are the client's mistake, so requests are parsed here as well: gRPC's own parsing lies outside the guard.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from common.errors import InvalidRequest, Reason, WireError
from common.metrics.catalogue import RPC_S, RPCS
from common.rpc.status import abort, internal_error
from common.telemetry import current_trace_id, served_span

_log = logging.getLogger(__name__)

_OUR_PACKAGE = "sangam."
_OK = "OK"

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Callable[[Any, Context], Any]
Behaviour = Callable[[Any, Context], Awaitable[Any]]
Parser = Callable[[bytes], Any]


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Guards unary and streaming handlers alike. Handlers are coroutine functions or async generators."""

    def __init__(self) -> None:
        self._guarded: dict[str, tuple[grpc.RpcMethodHandler[Any, Any], grpc.RpcMethodHandler[Any, Any]]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the handler that `continuation` finds; an unknown method stays gRPC's own UNIMPLEMENTED."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        inner, guarded = self._guarded.get(method, (None, None))
        if guarded is None or inner is not handler:
            guarded = _guarded_handler(handler, method)
            self._guarded[method] = handler, guarded
        return guarded


def _guarded_handler(handler: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of the same kind (unary or streaming on each side) whose errors are guarded."""
    kind = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
    name = "_".join(kind)
    make: Callable[..., grpc.RpcMethodHandler[Any, Any]] = getattr(grpc, f"{name}_rpc_method_handler")
    inner: Handler = getattr(handler, name)
    if handler.request_deserializer is not None:
        inner = _parsing(inner, handler.request_deserializer, many=handler.request_streaming)
    behaviour = (_streaming if handler.response_streaming else _unary)(inner, method)
    return make(behaviour, None, handler.response_serializer)


def _parsing(inner: Handler, parse: Parser, *, many: bool) -> Handler:
    """`inner` for requests that arrive as bytes (`many`: as an iterator of them); a generator stays a generator."""
    read: Callable[[Any], Any] = functools.partial(_messages if many else _message, parse)

    async def streaming(request: Any, context: Context) -> AsyncIterator[Any]:
        async with contextlib.aclosing(inner(read(request), context)) as messages:
            async for message in messages:
                yield message

    async def awaited(request: Any, context: Context) -> Any:
        return await inner(read(request), context)

    return streaming if inspect.isasyncgenfunction(inner) else awaited


def _message(parse: Parser, data: bytes) -> Any:
    try:
        return parse(data)
    except DecodeError:
        raise InvalidRequest("message", "is not a message of this call") from None


async def _messages(parse: Parser, many: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for data in many:
        yield _message(parse, data)


def _unary(inner: Handler, method: str) -> Behaviour:
    async def unary(request: Any, context: Context) -> Any:
        async with _guard(method, context):
            return await inner(request, context)

    return unary


def _streaming(inner: Handler, method: str) -> Behaviour:
    generates = inspect.isasyncgenfunction(inner)

    async def streaming(request: Any, context: Context) -> None:
        async with _guard(method, context):
            if not generates:
                await inner(request, context)
                return
            # Closed here, so that a handler's `finally` runs in its own task when its client leaves, not in the
            # garbage collector's.
            async with contextlib.aclosing(inner(request, context)) as messages:
                async for message in messages:
                    await context.write(message)

    return streaming


@contextlib.asynccontextmanager
async def _guard(method: str, context: Context) -> AsyncIterator[None]:
    call = _Call(method, context)
    with served_span(method.lstrip("/"), context.invocation_metadata()), call:
        try:
            yield
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            # gRPC would leave the caller waiting for ever: nobody cancelled this call, something it awaited was.
            await call.abort(WireError(Reason.CANCELLED, "the work was cancelled"))
        except WireError as error:
            await call.abort(error)
        except Exception as error:
            await call.abort(_wire_error_in(error) or _hidden(error, method))


class _Call:
    """One call, timed and counted by its outcome when the block ends; gRPC's own services are not counted."""

    def __init__(self, method: str, context: Context) -> None:
        service, _, self._name = method.lstrip("/").partition("/")
        self._is_ours = service.startswith(_OUR_PACKAGE)
        self._context = context
        self._started_s = time.monotonic()
        self._outcome = _OK

    def __enter__(self) -> None:
        """The call begins."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._is_ours:
            # Whatever leaves the guard without an outcome is the client's leaving.
            outcome = Reason.CANCELLED.value if error is not None and self._outcome == _OK else self._outcome
            # Counted when the answer, which somebody waits for, has been written.
            asyncio.get_running_loop().call_soon(self._count, outcome, time.monotonic() - self._started_s)

    def _count(self, outcome: str, duration_s: float) -> None:
        RPCS.add(method=self._name, outcome=outcome)
        RPC_S.record(duration_s, method=self._name)

    async def abort(self, error: WireError) -> NoReturn:
        """End the call with `error`."""
        self._outcome = error.reason.value
        await abort(self._context, error)


def _is_being_cancelled() -> bool:
    """Whether the running handler itself was cancelled: client gone, deadline, server stopping."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _wire_error_in(error: Exception) -> WireError | None:
    """The first WireError of a task group's failures, if they are nothing worse."""
    if not isinstance(error, ExceptionGroup):
        return error if isinstance(error, WireError) else None
    found = [_wire_error_in(child) for child in error.exceptions]
    return found[0] if all(found) else None


def _hidden(error: Exception, method: str) -> WireError:
    """Log a bug with its traceback, and return what the client may know of it."""
    trace_id = current_trace_id()
    _log.error("%s failed (trace %s)", method, trace_id, exc_info=error)
    return internal_error(trace_id)

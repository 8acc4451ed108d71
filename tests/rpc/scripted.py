"""A gateway whose handlers do what a test tells them to: the smallest real server for the plumbing's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from common.rpc.channel import open_channel
from common.rpc.server import RpcServer
from sangam.v1 import inference_pb2, inference_pb2_grpc

SERVICE_NAME = "sangam.v1.InferenceService"
Script = Callable[[Any], Any]


class ScriptedGateway(inference_pb2_grpc.InferenceServiceServicer):
    """`unary(context)` is awaited by GetModel, `stream(context)` is iterated by Generate."""

    def __init__(self, *, unary: Script | None = None, stream: Script | None = None) -> None:
        self.unary = unary
        self.stream = stream
        self.streams_open = 0
        self.stream_ended = asyncio.Event()

    async def GetModel(self, request, context):
        return (self.unary and await self.unary(context)) or inference_pb2.GetModelResponse(model_id="scripted")

    async def Tokenize(self, request, context):
        return inference_pb2.TokenizeResponse(text=request.text)

    async def Cancel(self, request, context):
        raise AssertionError("nothing is cancelled here")

    async def Generate(self, request, context):
        self.streams_open += 1
        try:
            assert self.stream is not None
            async with aclosing(self.stream(context)) as messages:
                async for message in messages:
                    yield message
        finally:
            self.streams_open -= 1
            self.stream_ended.set()


class Loopback:
    """A running server with that gateway, and a stub that reaches it; use as `async with`."""

    def __init__(self, gateway: ScriptedGateway) -> None:
        self.gateway = gateway
        self.server = RpcServer(service_names=[SERVICE_NAME])
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(gateway, self.server.grpc)

    async def __aenter__(self) -> Loopback:
        self.address = await self.server.start("127.0.0.1", 0)
        await self.server.set_serving(True)
        self.channel = open_channel(self.address)
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.channel.close()
        await self.server.stop(0)

    async def get_model(self, **options: Any) -> inference_pb2.GetModelResponse:
        return await self.stub.GetModel(inference_pb2.GetModelRequest(), **options)

    def open_stream(self, **options: Any) -> Any:
        return self.stub.Generate(inference_pb2.GenerateRequest(), **options)

    async def generate(self, **options: Any) -> AsyncIterator[inference_pb2.GenerateResponse]:
        async for message in self.open_stream(**options):
            yield message


async def until(condition: Callable[[], bool]) -> None:
    """Poll until `condition()` holds; the caller bounds the wait."""
    while not condition():  # noqa: ASYNC110  # what is watched has no event to wait for
        await asyncio.sleep(0.01)


def committed(text: str) -> inference_pb2.GenerateResponse:
    """One event of a stream."""
    return inference_pb2.GenerateResponse(committed=inference_pb2.Committed(text=text))

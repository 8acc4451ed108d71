"""A gateway as its service runs it, in the test's own event loop, and a client's view of it."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from common.config import GatewayConfig
from common.errors import WireError
from common.rpc.channel import open_channel
from common.rpc.status import wire_error
from sangam.v1 import inference_pb2, inference_pb2_grpc
from services.gateway.service import serve

MAX_CANVAS_TOKENS = 128
EOS, PAD, MASK = 256, 257, 258


@asynccontextmanager
async def running_gateway(model_dir: Path, scheduler_address: str, ready_file: Path, **settings: Any):
    """The gateway's stub and address while the block runs."""
    config = GatewayConfig(
        model_dir=model_dir, scheduler_address=scheduler_address, ready_file=ready_file, log_level="warning", **settings
    )
    stop = asyncio.Event()
    service = asyncio.create_task(serve(config, stop))
    try:
        async with asyncio.timeout(10):
            while (address := _address_in(ready_file)) is None:
                if service.done():
                    service.result()
                await asyncio.sleep(0.005)
        async with open_channel(address) as channel:
            yield Client(stub=inference_pb2_grpc.InferenceServiceStub(channel), address=address)
    finally:
        stop.set()
        await service


def _address_in(ready_file: Path) -> str | None:
    return json.loads(ready_file.read_text())["address"] if ready_file.exists() else None


@dataclass
class Reading:
    """All that one Generate call brought."""

    responses: list[inference_pb2.GenerateResponse] = field(default_factory=list)
    error: WireError | None = None
    code: grpc.StatusCode | None = None

    def of(self, kind: str) -> list[Any]:
        return [getattr(response, kind) for response in self.responses if response.WhichOneof("event") == kind]

    @property
    def token_ids(self) -> list[int]:
        return [token for run in self.of("committed") for token in run.token_ids]

    @property
    def text(self) -> str:
        return "".join(run.text for run in self.of("committed"))

    @property
    def finished(self) -> inference_pb2.Finished:
        finished: list[inference_pb2.Finished] = self.of("finished")
        assert len(finished) == 1
        return finished[0]


@dataclass
class Client:
    """Calls one gateway."""

    stub: Any
    address: str

    async def generate(self, timeout_s: float | None = 10.0, **fields: Any) -> Reading:
        """Run one request to its end, however it ends."""
        return await read_on(self.stub.Generate(generate_request(**fields), timeout=timeout_s))


async def read_on(call: Any) -> Reading:
    """The rest of a Generate call, however it ends."""
    reading = Reading()
    try:
        async for response in call:
            reading.responses.append(response)
    except grpc.aio.AioRpcError as error:
        reading.error, reading.code = wire_error(error), error.code()
    return reading


def generate_request(**fields: Any) -> inference_pb2.GenerateRequest:
    """A valid small request, changed by `fields`; `token_ids` may be a plain list."""
    if "token_ids" in fields:
        fields["token_ids"] = inference_pb2.TokenIds(ids=fields["token_ids"])
    elif "text" not in fields and "chat" not in fields:
        fields["text"] = "Hello"
    return inference_pb2.GenerateRequest(**{"max_tokens": 4, "block_length_tokens": 4, **fields})


async def take(responses: Any, kind: str) -> Any:
    """The next response of a Generate call, which must be of that kind."""
    response = await anext(aiter(responses))
    assert response.WhichOneof("event") == kind, response
    return getattr(response, kind)

"""A KV registry for tests: real gRPC, a set of entries."""

from __future__ import annotations

import asyncio
from typing import Any

from common.core.ids import BlockAttempt
from common.rpc.convert import block_attempt_from_proto
from common.rpc.server import RpcServer
from sangam.v1 import kv_registry_pb2 as pb
from sangam.v1 import kv_registry_pb2_grpc


class RegistryDouble(kv_registry_pb2_grpc.KvRegistryServiceServicer):
    """Keeps the set of entries, counts calls; the first `faults` publications fail, all wait for `gate`."""

    def __init__(self) -> None:
        self.entries: set[BlockAttempt] = set()
        self.calls = 0
        self.faults = 0
        self.released_by: set[int] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    async def PublishKv(self, request: pb.PublishKvRequest, context: object) -> pb.PublishKvResponse:
        self.calls += 1
        await self.gate.wait()
        if self.faults:
            self.faults -= 1
            raise ZeroDivisionError
        self.entries |= {block_attempt_from_proto(entry.attempt) for entry in request.entries}
        return pb.PublishKvResponse()

    async def ReleaseKv(self, request: pb.ReleaseKvRequest, context: object) -> pb.ReleaseKvResponse:
        self.calls += 1
        self.released_by.add(request.owner.incarnation)
        self.entries -= {block_attempt_from_proto(attempt) for attempt in request.attempts}
        return pb.ReleaseKvResponse()

    async def ReconcileKv(self, request: pb.ReconcileKvRequest, context: object) -> pb.ReconcileKvResponse:
        self.calls += 1
        held = {block_attempt_from_proto(attempt) for attempt in request.held}
        self.entries &= held
        known = self.entries
        unknown = [attempt for attempt in request.held if block_attempt_from_proto(attempt) not in known]
        return pb.ReconcileKvResponse(unknown=unknown)


async def start_registry(port: int = 0) -> tuple[RegistryDouble, RpcServer, str]:
    """Serve an empty registry on loopback; returns it with its server and address."""
    # The methods that no worker calls stay UNIMPLEMENTED, as in the generated base class.
    make: Any = RegistryDouble
    double: RegistryDouble = make()
    server = RpcServer(service_names=["sangam.v1.KvRegistryService"])
    kv_registry_pb2_grpc.add_KvRegistryServiceServicer_to_server(double, server.grpc)
    return double, server, await server.start("127.0.0.1", port)

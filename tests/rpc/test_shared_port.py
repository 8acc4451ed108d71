"""Two servers at one port: the later one gets every new connection, and the earlier one's clients move over."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.errors import ConfigError
from common.rpc.channel import open_channel
from common.rpc.server import RpcServer
from common.rpc.shared_port import check_shareable, take_new_connections
from tests.integration.cluster_help import own_connection

CONNECTIONS = 40


async def start(stack: AsyncExitStack, name: str, port: int, *, shares_port: bool = True) -> str:
    """A server that knows one service, by that name; its address."""
    server = RpcServer(service_names=[name], shares_port=shares_port)
    stack.push_async_callback(server.stop, 0.0)
    return await server.start("127.0.0.1", port)


async def knows(stub: health_pb2_grpc.HealthStub, name: str) -> bool:
    """Whether the server that the stub reaches is the one of that name."""
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=10)
    known = (await watch.read()).status != health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()
    return bool(known)


async def answers_as(address: str, name: str) -> bool:
    """Whether the server that a new connection reaches is the one of that name."""
    async with own_connection(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=""), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        return await knows(stub, name)


async def test_all_new_connections_go_to_the_later_server() -> None:
    async with AsyncExitStack() as stack:
        address = await start(stack, "first", 0)
        assert await answers_as(address, "first")
        port = int(address.rpartition(":")[2])
        async with AsyncExitStack() as second:
            assert await start(second, "second", port) == address
            # Were they spread, this would hold by chance once in 2**40.
            assert all([await answers_as(address, "second") for _ in range(CONNECTIONS)])
        # The later one has ended: the first gets them again.
        assert await answers_as(address, "first")
        await start(stack, "third", port)
        assert all([await answers_as(address, "third") for _ in range(CONNECTIONS)])


async def test_a_server_that_shares_nothing_keeps_its_port_for_itself() -> None:
    async with AsyncExitStack() as stack:
        port = int((await start(stack, "alone", 0, shares_port=False)).rpartition(":")[2])
        for shares_port in (True, False):
            with pytest.raises(ConfigError, match="cannot listen"):
                await start(stack, "other", port, shares_port=shares_port)
        shared = int((await start(stack, "first", 0)).rpartition(":")[2])
        with pytest.raises(ConfigError, match="cannot listen"):
            await start(stack, "other", shared, shares_port=False)


async def test_connections_move_over_and_no_call_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.rpc.options.CONNECTION_AGE_S", 0.3)
    async with AsyncExitStack() as stack:
        address = await start(stack, "first", 0)
        channel = await stack.enter_async_context(open_channel(address))
        stub = health_pb2_grpc.HealthStub(channel)
        assert await knows(stub, "first")
        await start(stack, "second", int(address.rpartition(":")[2]))
        async with asyncio.timeout(20):
            while not await knows(stub, "second"):
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert not await knows(stub, "first")


def test_nobody_listens_where_nobody_does() -> None:
    assert take_new_connections(1) == 0


def test_elsewhere_than_on_linux_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check_shareable("--share-port")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="--share-port: needs Linux"):
        check_shareable("--share-port")

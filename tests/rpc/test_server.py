"""Health, reflection, graceful stop, bursts: what every service gets from `RpcServer`."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.errors import ConfigError, Reason
from common.rpc.healthcheck import is_serving
from common.rpc.options import channel_options, server_options
from common.rpc.status import wire_error
from tests.rpc.scripted import SERVICE_NAME, Loopback, ScriptedGateway, committed, until


async def test_health_speaks_for_the_server_and_each_service():
    async with Loopback(ScriptedGateway()) as loopback:
        assert await is_serving(loopback.address)
        assert await is_serving(loopback.address, service=SERVICE_NAME)
        assert not await is_serving(loopback.address, service="sangam.v1.Nothing")
        await loopback.server.set_serving(False)
        assert not await is_serving(loopback.address)
        assert not await is_serving(loopback.address, service=SERVICE_NAME)


async def test_a_server_does_not_serve_before_it_says_so():
    loopback = Loopback(ScriptedGateway())
    address = await loopback.server.start("127.0.0.1", 0)
    assert not await is_serving(address)
    await loopback.server.stop(0)


async def test_reflection_lists_our_service_and_gives_its_file():
    async with Loopback(ScriptedGateway()) as loopback:
        stub = reflection_pb2_grpc.ServerReflectionStub(loopback.channel)
        call = stub.ServerReflectionInfo(timeout=10)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = (await call.read()).list_services_response.service
        assert {SERVICE_NAME, "grpc.health.v1.Health"} <= {service.name for service in listed}
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE_NAME))
        assert (await call.read()).file_descriptor_response.file_descriptor_proto
        await call.done_writing()


async def test_health_watch_sees_the_change():
    async with Loopback(ScriptedGateway()) as loopback:
        call = health_pb2_grpc.HealthStub(loopback.channel).Watch(health_pb2.HealthCheckRequest(), timeout=10)
        statuses = health_pb2.HealthCheckResponse.ServingStatus
        assert (await call.read()).status == statuses.SERVING
        await loopback.server.set_serving(False)
        assert (await call.read()).status == statuses.NOT_SERVING
        call.cancel()


async def see_not_serving(watch: Any) -> None:
    while (await watch.read()).status != health_pb2.HealthCheckResponse.NOT_SERVING:
        pass
    watch.cancel()


async def test_graceful_stop_lets_a_running_call_end_and_takes_no_new_one():
    started, release = asyncio.Event(), asyncio.Event()

    async def stream(context):
        started.set()
        yield committed("first")
        await release.wait()
        yield committed("last")

    async with Loopback(ScriptedGateway(stream=stream)) as loopback, asyncio.timeout(20):

        async def read_all() -> list[str]:
            return [message.committed.text async for message in loopback.generate()]

        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read_all())
            await started.wait()
            watch = health_pb2_grpc.HealthStub(loopback.channel).Watch(health_pb2.HealthCheckRequest())
            await watch.read()
            stopping = tasks.create_task(loopback.server.stop(10))
            await see_not_serving(watch)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await loopback.get_model(timeout=5)
            release.set()
        assert reading.result() == ["first", "last"]
        assert stopping.done()
    assert wire_error(caught.value).reason is Reason.PEER_LOST


async def test_stop_ends_calls_that_outlast_the_grace_as_a_lost_peer(caplog, capfd):
    async def stream(context):
        yield committed("first")
        await asyncio.Event().wait()

    gateway = ScriptedGateway(stream=stream)
    async with Loopback(gateway) as loopback, asyncio.timeout(20):
        call = loopback.open_stream()
        await call.read()
        await loopback.server.stop(0.05)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        await gateway.stream_ended.wait()
    assert wire_error(caught.value).reason is Reason.PEER_LOST
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


async def test_a_port_in_use_is_a_config_error():
    async with Loopback(ScriptedGateway()) as loopback:
        port = int(loopback.address.rpartition(":")[2])
        second = Loopback(ScriptedGateway())
        with pytest.raises(ConfigError, match=f"--port: cannot listen on 127.0.0.1:{port}"):
            await second.server.start("127.0.0.1", port)


async def test_hundreds_of_calls_at_once_all_get_an_answer():
    release = asyncio.Event()
    running = 0

    async def unary(context):
        nonlocal running
        running += 1
        await release.wait()

    async with Loopback(ScriptedGateway(unary=unary)) as loopback, asyncio.timeout(60):
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(loopback.get_model()) for _ in range(800)]
            await until(lambda: running == len(calls))
            release.set()
        assert [call.result().model_id for call in calls] == ["scripted"] * 800


def test_both_ends_agree_on_keepalive_and_message_size():
    server: dict[str, Any] = dict(server_options())
    channel: dict[str, Any] = dict(channel_options())
    agreed = {name for name in server if name in channel}
    assert {
        "grpc.max_send_message_length",
        "grpc.max_receive_message_length",
        "grpc.keepalive_time_ms",
        "grpc.http2.min_ping_interval_without_data_ms",
    } <= agreed
    assert all(server[name] == channel[name] for name in agreed)
    assert server["grpc.max_receive_message_length"] == 16 * 1024 * 1024
    assert channel["grpc.keepalive_time_ms"] > server["grpc.http2.min_ping_interval_without_data_ms"]

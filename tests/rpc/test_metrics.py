"""MetricsService, as every server has it."""

from __future__ import annotations

from common.metrics.catalogue import LEAKED_PAGES, REPLAY_DIVERGENCE
from common.metrics.readings import Distribution, Reading
from common.rpc.channel import open_channel
from common.rpc.metrics import readings_from_proto, readings_to_proto
from common.rpc.server import RpcServer
from common.telemetry import setup_telemetry
from sangam.v1 import metrics_pb2, metrics_pb2_grpc

READINGS = [
    Reading(name="a_total", kind="counter", labels=(), value=3.0),
    Reading(name="b", kind="gauge", labels=(("role", "decode"), ("worker", "w")), value=0.0),
    Reading(
        name="c_s",
        kind="histogram",
        labels=(),
        value=Distribution(count=3, sum=1.5, bounds=(0.5, 1.0), bucket_counts=(1, 1, 1)),
    ),
]


def test_readings_survive_the_wire() -> None:
    wire = readings_to_proto(READINGS).SerializeToString()
    assert readings_from_proto(metrics_pb2.GetMetricsResponse.FromString(wire)) == READINGS


def test_a_kind_from_the_future_is_passed_over() -> None:
    message = readings_to_proto(READINGS)
    message.points.add(name="d")
    assert readings_from_proto(message) == READINGS


async def test_any_server_tells_what_its_process_measured() -> None:
    setup_telemetry("test", "")
    LEAKED_PAGES.show(5)
    REPLAY_DIVERGENCE.add(0)
    server = RpcServer(service_names=[])
    address = await server.start("127.0.0.1", 0)
    try:
        async with open_channel(address) as channel:
            stub = metrics_pb2_grpc.MetricsServiceStub(channel)
            readings = readings_from_proto(await stub.GetMetrics(metrics_pb2.GetMetricsRequest()))
    finally:
        LEAKED_PAGES.show(0)
        await server.stop(0)
    values = {reading.name: (reading.kind, reading.value) for reading in readings}
    assert values["sangam_leaked_pages"] == ("gauge", 5)
    assert values["sangam_replay_divergence_total"][0] == "counter"

"""Every core dataclass survives the wire: to proto, to bytes, back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.core.ids import BlockAttempt, RequestId, Role, ServingMode, WorkerId, WorkerLife
from common.core.params import CacheMode, ConfidenceThreshold, default_seed
from common.core.work import FinishReason, KvHandle, LocalPrefill
from common.rpc import convert
from sangam.v1 import decode_pb2, scheduler_pb2, types_pb2
from tests.rpc import messages


def over_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("block_attempt", messages.attempts),
        ("worker_life", messages.lives),
        ("sampling_params", messages.sampling_params),
        ("step_delta", messages.steps),
        ("block_completion", messages.completions),
        ("kv_handle", messages.handles),
        ("iteration_report", messages.reports),
        ("block_placement", messages.placements),
        ("worker_spec", messages.worker_specs),
    ],
)
@given(data=st.data())
def test_round_trip(name, values, data):
    value = data.draw(values)
    to_proto, from_proto = getattr(convert, f"{name}_to_proto"), getattr(convert, f"{name}_from_proto")
    assert from_proto(over_the_wire(to_proto(value))) == value


@given(spec=messages.request_specs)
def test_request_round_trip_with_the_deadline_beside_it(spec):
    message = over_the_wire(convert.request_spec_to_proto(spec))
    assert convert.request_spec_from_proto(message, deadline_s=spec.deadline_s) == spec


@given(work=messages.block_works, incarnation=messages.uint64)
def test_block_work_round_trip_with_its_target(work, incarnation):
    message = over_the_wire(convert.block_work_to_proto(work, target_incarnation=incarnation))
    assert convert.block_work_from_proto(message) == work
    assert message.target_incarnation == incarnation


@given(source=messages.sources)
def test_kv_source_round_trip(source):
    request = decode_pb2.DecodeRequest()
    convert.kv_source_to_proto(source, request)
    assert convert.kv_source_from_proto(over_the_wire(request)) == source


@given(transfer=messages.transfers, first=st.none() | messages.steps)
def test_kv_received_round_trip(transfer, first):
    message = over_the_wire(convert.kv_received_to_proto(transfer, first))
    assert convert.kv_received_from_proto(message) == (transfer, first)


def test_local_prefill_is_told_apart_from_no_source_at_all():
    request = decode_pb2.DecodeRequest()
    convert.kv_source_to_proto(LocalPrefill(), request)
    assert request.WhichOneof("kv_source") == "local_prefill"


@given(view=messages.cluster_views)
def test_cluster_view_shows_every_worker_and_count(view):
    message = over_the_wire(convert.cluster_view_to_proto(view))
    assert convert.serving_mode_from_proto(message.mode) is view.mode
    counts = ("queued_blocks", "waiting_decode_blocks", "running_requests", "ended_requests")
    for name in (*counts, "overload_threshold_tokens", "overload_threshold_adapts"):
        assert getattr(message, name) == getattr(view, name)
    assert len(message.workers) == len(view.workers)
    for state, worker in zip(message.workers, view.workers, strict=True):
        assert convert.worker_life_from_proto(state.life) == worker.spec.life
        assert convert.role_from_proto(state.role) is worker.spec.role
        for name in ("address", "pages_total", "token_budget_tokens"):
            assert getattr(state, name) == getattr(worker.spec, name)
        ledger = ("pages_free", "outstanding_prefill_tokens", "active_decodes", "live_blocks", "length_sum_tokens")
        for name in (*ledger, "draining"):
            assert getattr(state, name) == getattr(worker, name)
        report = convert.iteration_report_from_proto(state.report) if state.HasField("report") else None
        assert report == worker.report


@pytest.mark.parametrize(
    ("kind", "name", "prefix"),
    [
        (CacheMode, "cache_mode", "CACHE_MODE_"),
        (Role, "role", "WORKER_ROLE_"),
        (ServingMode, "serving_mode", "SERVING_MODE_"),
        (FinishReason, "finish_reason", "FINISH_REASON_"),
    ],
)
def test_enums_map_by_name(kind, name, prefix):
    for member in kind:
        number = getattr(convert, f"{name}_to_proto")(member)
        assert number == getattr(types_pb2, prefix + member.name)
        assert getattr(convert, f"{name}_from_proto")(number) is member


def test_a_request_that_goes_on_has_no_finish_reason():
    assert convert.finish_reason_to_proto(None) == types_pb2.FINISH_REASON_UNSPECIFIED
    assert convert.finish_reason_from_proto(types_pb2.FINISH_REASON_UNSPECIFIED) is None


def test_sampling_defaults_of_a_client_that_says_nothing():
    seed = default_seed(prompt_token_ids=[1, 2], max_tokens=8, block_length_tokens=4)
    params = convert.sampling_params_from_proto(types_pb2.SamplingParams(), default_seed=seed)
    assert (params.strategy, params.temperature, params.seed) == (ConfidenceThreshold(0.9), 0.0, seed)


def test_seed_zero_is_a_seed():
    message = types_pb2.SamplingParams(seed=0)
    assert convert.sampling_params_from_proto(message, default_seed=5).seed == 0


@pytest.mark.parametrize(("lease_s", "lease_ms"), [(30.0, 30_000), (-1.0, 0), (0.0004, 0), (1e9, 2**32 - 1)])
def test_leases_travel_in_milliseconds_and_never_wrap(lease_s, lease_ms):
    handle = KvHandle(
        attempt=BlockAttempt(RequestId("r"), 0, 0),
        owner=WorkerLife(WorkerId("p0"), 1),
        transport="tcp",
        address="127.0.0.1:1",
        layout_fingerprint="ab",
        canvas_tokens=32,
        pages=2,
        lease_s=lease_s,
    )
    assert convert.kv_handle_to_proto(handle).lease_ms == lease_ms


def test_step_bytes_do_not_grow_with_the_position():
    """Deltas only: the last step of a long canvas costs a few bytes more than the first (varints), not its length."""

    def size(position: int) -> int:
        step = types_pb2.StepDelta(step=1, positions=[position], token_ids=[7], confidences=[0.5])
        event = scheduler_pb2.ScheduleEvent(step=scheduler_pb2.ScheduleStep(block=0, delta=step))
        return scheduler_pb2.ScheduleResponse(events=[event]).ByteSize()

    assert size(100_000) - size(0) <= 3

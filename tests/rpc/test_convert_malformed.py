"""What the conversions refuse, each with the path of the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from common.errors import BadSamplingParams, InvalidPrompt, InvalidRequest
from common.rpc import convert
from sangam.v1 import decode_pb2, scheduler_pb2, types_pb2

ATTEMPT = types_pb2.BlockAttempt(request_id="r", block=1)
LIFE = types_pb2.WorkerLife(worker_id="p0", incarnation=1)
SAMPLING = types_pb2.SamplingParams(seed=1)
STEP = types_pb2.StepDelta(positions=[4, 6], token_ids=[1, 2], confidences=[0.5, 1.0])
HANDLE = types_pb2.KvHandle(
    attempt=ATTEMPT, owner=LIFE, transport="tcp", address="h:1", layout_fingerprint="f", canvas_tokens=9, pages=1
)
WORK = types_pb2.BlockWork(
    attempt=ATTEMPT,
    prompt_token_ids=[1],
    generated_token_ids=[5, 6, 7, 8],
    max_tokens=7,
    block_length_tokens=4,
    cache_mode=types_pb2.CACHE_MODE_DUAL,
    sampling=SAMPLING,
)
REQUEST = scheduler_pb2.ScheduleRequest(
    request_id="r",
    prompt_token_ids=[1],
    max_tokens=7,
    block_length_tokens=4,
    cache_mode=types_pb2.CACHE_MODE_DUAL,
    sampling=SAMPLING,
)
WORKER = scheduler_pb2.RegisterWorkerRequest(
    life=LIFE,
    role=types_pb2.WORKER_ROLE_DECODE,
    address="h:1",
    layout_fingerprint="f",
    model_id="m",
    pages_total=1,
    page_size_tokens=16,
    max_canvas_tokens=64,
    token_budget_tokens=1024,
    max_batch_size=8,
)
RECEIVED = decode_pb2.KvReceived(transfer_s=1.0, exposed_s=0.5, transfer_bytes=8, first=STEP)
DECODE = decode_pb2.DecodeRequest(work=WORK, remote=decode_pb2.RemoteKv(handle=HANDLE, first=STEP))


def request_from_proto(message: scheduler_pb2.ScheduleRequest) -> Any:
    return convert.request_spec_from_proto(message, deadline_s=None)


def sampling_from_proto(message: types_pb2.SamplingParams) -> Any:
    return convert.sampling_params_from_proto(message)


def set_to(name: str, value: Any) -> Callable[[Any], None]:
    """A change of one field, given by its dotted path."""

    def change(message: Any) -> None:
        *parents, last = name.split(".")
        for parent in parents:
            message = getattr(message, parent)
        message.ClearField(last)
        if isinstance(value, list):
            getattr(message, last).extend(value)
        elif value is not None:
            setattr(message, last, value)

    return change


CASES = [
    (convert.block_attempt_from_proto, ATTEMPT, set_to("request_id", ""), "attempt.request_id"),
    (convert.worker_life_from_proto, LIFE, set_to("worker_id", ""), "life.worker_id"),
    (convert.worker_life_from_proto, LIFE, set_to("incarnation", 0), "life.incarnation"),
    (convert.step_delta_from_proto, STEP, set_to("token_ids", [1]), "step.token_ids"),
    (convert.step_delta_from_proto, STEP, set_to("confidences", [1, 1, 1]), "step.confidences"),
    (convert.step_delta_from_proto, STEP, set_to("confidences", [1, float("nan")]), "step.confidences"),
    (convert.step_delta_from_proto, STEP, set_to("confidences", [1, 1.5]), "step.confidences"),
    (convert.step_delta_from_proto, STEP, set_to("positions", [6, 4]), "step.positions"),
    (convert.step_delta_from_proto, STEP, set_to("positions", [4, 4]), "step.positions"),
    (convert.kv_handle_from_proto, HANDLE, set_to("attempt", None), "handle.attempt"),
    (convert.kv_handle_from_proto, HANDLE, set_to("owner", None), "handle.owner"),
    (convert.kv_handle_from_proto, HANDLE, set_to("owner.worker_id", ""), "handle.owner.worker_id"),
    (convert.kv_handle_from_proto, HANDLE, set_to("transport", ""), "handle.transport"),
    (convert.kv_handle_from_proto, HANDLE, set_to("address", ""), "handle.address"),
    (convert.kv_handle_from_proto, HANDLE, set_to("layout_fingerprint", ""), "handle.layout_fingerprint"),
    (convert.kv_handle_from_proto, HANDLE, set_to("canvas_tokens", 0), "handle.canvas_tokens"),
    (convert.kv_handle_from_proto, HANDLE, set_to("pages", 0), "handle.pages"),
    (convert.kv_source_from_proto, DECODE, set_to("remote", None), "kv_source"),
    (convert.kv_source_from_proto, DECODE, set_to("remote.handle", None), "remote.handle"),
    (convert.kv_source_from_proto, DECODE, set_to("remote.first.positions", [6, 4]), "remote.first.positions"),
    (convert.kv_received_from_proto, RECEIVED, set_to("transfer_s", -1.0), "kv_received.transfer_s"),
    (convert.kv_received_from_proto, RECEIVED, set_to("exposed_s", float("nan")), "kv_received.exposed_s"),
    (convert.kv_received_from_proto, RECEIVED, set_to("first.positions", [6, 4]), "kv_received.first.positions"),
    (convert.block_work_from_proto, WORK, set_to("attempt", None), "work.attempt"),
    (convert.block_work_from_proto, WORK, set_to("attempt.block", 2), "work.attempt.block"),
    (convert.block_work_from_proto, WORK, set_to("generated_token_ids", [5]), "work.generated_token_ids"),
    (convert.block_work_from_proto, WORK, set_to("prompt_token_ids", []), "work.prompt_token_ids"),
    (convert.block_work_from_proto, WORK, set_to("max_tokens", 0), "work.max_tokens"),
    (convert.block_work_from_proto, WORK, set_to("block_length_tokens", 0), "work.block_length_tokens"),
    (convert.block_work_from_proto, WORK, set_to("cache_mode", 0), "work.cache_mode"),
    (convert.block_work_from_proto, WORK, set_to("sampling", None), "work.sampling"),
    (request_from_proto, REQUEST, set_to("request_id", ""), "request_id"),
    (request_from_proto, REQUEST, set_to("prompt_token_ids", []), "prompt_token_ids"),
    (request_from_proto, REQUEST, set_to("max_tokens", 0), "max_tokens"),
    (request_from_proto, REQUEST, set_to("block_length_tokens", 0), "block_length_tokens"),
    (request_from_proto, REQUEST, set_to("cache_mode", 77), "cache_mode"),
    (request_from_proto, REQUEST, set_to("sampling", None), "sampling"),
    (request_from_proto, REQUEST, set_to("sampling.seed", None), "seed"),
    (request_from_proto, REQUEST, set_to("committed_token_ids", [1, 2]), "committed_token_ids"),
    (request_from_proto, REQUEST, set_to("shown.positions", [1]), "shown.token_ids"),
    (sampling_from_proto, SAMPLING, set_to("temperature", -1.0), "temperature"),
    (sampling_from_proto, SAMPLING, set_to("temperature", float("nan")), "temperature"),
    (sampling_from_proto, SAMPLING, set_to("confidence_threshold", 1.5), "confidence_threshold"),
    (sampling_from_proto, SAMPLING, set_to("confidence_threshold", float("nan")), "confidence_threshold"),
    (sampling_from_proto, SAMPLING, set_to("confidence_quota", 0), "confidence_quota"),
    (sampling_from_proto, SAMPLING, set_to("confidence_quota", -3), "confidence_quota"),
    (sampling_from_proto, SAMPLING, set_to("confidence_dynamic", 0.0), "confidence_dynamic"),
    (convert.worker_spec_from_proto, WORKER, set_to("life", None), "life"),
    (convert.worker_spec_from_proto, WORKER, set_to("role", 0), "role"),
    (convert.worker_spec_from_proto, WORKER, set_to("address", ""), "address"),
    (convert.worker_spec_from_proto, WORKER, set_to("layout_fingerprint", ""), "layout_fingerprint"),
    (convert.worker_spec_from_proto, WORKER, set_to("model_id", ""), "model_id"),
    (convert.worker_spec_from_proto, WORKER, set_to("pages_total", 0), "pages_total"),
    (convert.worker_spec_from_proto, WORKER, set_to("page_size_tokens", 0), "page_size_tokens"),
    (convert.worker_spec_from_proto, WORKER, set_to("max_canvas_tokens", 0), "max_canvas_tokens"),
    (convert.worker_spec_from_proto, WORKER, set_to("token_budget_tokens", 0), "token_budget_tokens"),
    (convert.worker_spec_from_proto, WORKER, set_to("max_batch_size", 0), "max_batch_size"),
    (convert.serving_mode_from_proto, 0, None, "mode"),
    (convert.finish_reason_from_proto, 9, None, "finish_reason"),
    (
        convert.iteration_report_from_proto,
        types_pb2.IterationReport(),
        set_to("duration_s", float("inf")),
        "report.duration_s",
    ),
    (
        convert.block_placement_from_proto,
        types_pb2.BlockPlacement(),
        set_to("decode_s", -1.0),
        "placement.decode_s",
    ),
]


@pytest.mark.parametrize(("from_proto", "good", "change", "field"), CASES)
def test_malformed_field_is_named(from_proto, good, change, field):
    bad = good
    if change is not None:
        from_proto(good)  # the change is what it is refused for
        bad = type(good)()
        bad.CopyFrom(good)
        change(bad)
    with pytest.raises(InvalidRequest) as caught:
        from_proto(bad)
    assert caught.value.field == field


def test_the_reasons_are_the_clients():
    with pytest.raises(InvalidPrompt):
        request_from_proto(_changed(REQUEST, "prompt_token_ids", []))
    with pytest.raises(BadSamplingParams):
        sampling_from_proto(_changed(SAMPLING, "temperature", -1.0))


def _changed(good: Any, name: str, value: Any) -> Any:
    bad = type(good)()
    bad.CopyFrom(good)
    set_to(name, value)(bad)
    return bad

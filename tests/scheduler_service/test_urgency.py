"""What the shell carries out at once, and what it leaves for a moment later."""

from __future__ import annotations

from common.core.effects import CallDecode, CallPrefill, FinishRequest, PublishStep, ReleaseKv, SchedulerEffect
from common.core.ids import BlockAttempt, CallId, RequestId, WorkerId, WorkerLife
from common.core.params import CacheMode, ConfidenceQuota, SamplingParams
from common.core.work import BlockWork, FinishReason, KvHandle, KvSource, LocalPrefill, RemoteKv, StepDelta
from services.scheduler.urgency import by_urgency

WORKER = WorkerLife(WorkerId("w"), 1)


def attempt(request_id: str) -> BlockAttempt:
    return BlockAttempt(RequestId(request_id), 0, 0)


def work(request_id: str) -> BlockWork:
    return BlockWork(
        attempt=attempt(request_id),
        prompt_token_ids=(1, 2),
        generated_token_ids=(),
        max_tokens=16,
        canvas_generated_tokens=16,
        block_length_tokens=16,
        cache_mode=CacheMode.DUAL,
        sampling=SamplingParams(strategy=ConfidenceQuota(4), temperature=0.0, seed=1),
        ignore_eos=True,
    )


def step(request_id: str) -> PublishStep:
    delta = StepDelta(step=0, positions=(0,), token_ids=(7,), confidences=(0.5,))
    return PublishStep(request_id=RequestId(request_id), block=0, step=delta)


def prefill(request_id: str) -> CallPrefill:
    return CallPrefill(call_id=CallId(1), target=WORKER, work=work(request_id), deadline_s=None)


def decode(request_id: str, source: KvSource) -> CallDecode:
    return CallDecode(call_id=CallId(2), target=WORKER, work=work(request_id), source=source, deadline_s=None)


def remote(request_id: str, first: StepDelta | None) -> RemoteKv:
    handle = KvHandle(
        attempt=attempt(request_id),
        owner=WORKER,
        transport="tcp",
        address="127.0.0.1:1",
        layout_fingerprint="f",
        canvas_tokens=18,
        pages=2,
        lease_s=1.0,
    )
    return RemoteKv(handle=handle, first=first)


def finish(request_id: str) -> FinishRequest:
    return FinishRequest(request_id=RequestId(request_id), finish=FinishReason.LENGTH)


def test_a_call_goes_first_and_its_requests_client_hears_later() -> None:
    effects: list[SchedulerEffect] = [step("a"), finish("b"), prefill("a")]
    assert by_urgency(effects) == ([prefill("a"), finish("b")], [step("a")])


def test_whoever_has_no_new_call_is_told_at_once() -> None:
    effects: list[SchedulerEffect] = [step("a"), finish("a")]
    assert by_urgency(effects) == (effects, [])


def test_a_decode_whose_prefill_has_ended_is_urgent_and_one_that_reads_early_is_not() -> None:
    late, early = decode("a", remote("a", step("a").step)), decode("b", remote("b", None))
    local = decode("c", LocalPrefill())
    effects: list[SchedulerEffect] = [early, step("b"), late, local, ReleaseKv(owner=WORKER, attempt=attempt("d"))]
    at_once, later = by_urgency(effects)
    assert at_once == [late, local, effects[-1], step("b")]
    assert later == [early]

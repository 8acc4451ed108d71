"""Plain values for core tests: requests, workers, deltas."""

from __future__ import annotations

from zlib import crc32

from common.core.cluster import WorkerSpec
from common.core.ids import BlockAttempt, RequestId, Role, WorkerId, WorkerLife
from common.core.params import CacheMode, ConfidenceThreshold, SamplingParams
from common.core.work import IterationReport, KvHandle, RequestSpec, StepDelta

SAMPLING = SamplingParams(strategy=ConfidenceThreshold(0.9), temperature=0.0, seed=1)


def request_spec(
    name: str,
    *,
    prompt: int = 8,
    max_tokens: int = 8,
    block: int = 4,
    cache: CacheMode = CacheMode.DUAL,
    deadline_s: float | None = None,
    committed: tuple[int, ...] = (),
    shown: tuple[tuple[int, int], ...] = (),
) -> RequestSpec:
    """A request of `prompt` + whole blocks of `block` tokens."""
    return RequestSpec(
        request_id=RequestId(name),
        prompt_token_ids=tuple(range(prompt)),
        max_tokens=max_tokens,
        block_length_tokens=block,
        cache_mode=cache,
        sampling=SAMPLING,
        ignore_eos=False,
        deadline_s=deadline_s,
        committed_token_ids=committed,
        shown=shown,
    )


def kv_handle(attempt: BlockAttempt, owner: WorkerLife, *, lease_s: float) -> KvHandle:
    """K/V of an attempt as its owner publishes it."""
    return KvHandle(
        attempt=attempt,
        owner=owner,
        transport="tcp",
        address=f"{owner.worker_id}:2",
        layout_fingerprint="layout",
        canvas_tokens=64,
        pages=4,
        lease_s=lease_s,
    )


def worker_spec(
    name: str,
    role: Role,
    *,
    incarnation: int = 1,
    pages: int = 16,
    page_size: int = 4,
    layout: str = "layout",
    max_canvas: int = 4096,
) -> WorkerSpec:
    """A worker life."""
    return WorkerSpec(
        life=WorkerLife(WorkerId(name), incarnation),
        role=role,
        address=f"{name}:1",
        kv_transport="tcp",
        kv_address=f"{name}:2",
        layout_fingerprint=layout,
        model_id="tiny",
        pages_total=pages,
        page_size_tokens=page_size,
        max_canvas_tokens=max_canvas,
        token_budget_tokens=1024,
        max_batch_size=8,
    )


def iteration_report(
    *,
    duration_s: float = 0.02,
    decode_tokens: int = 0,
    prefill_tokens: int = 0,
    deficit_tokens: int = 0,
    budget_tokens: int = 0,
    wanted_blocks: int = 0,
    wanted_prefill_tokens: int = 0,
) -> IterationReport:
    """What a worker says after its first iteration."""
    return IterationReport(
        iteration=1,
        duration_s=duration_s,
        decode_tokens=decode_tokens,
        prefill_tokens_admitted=prefill_tokens,
        deficit_tokens=deficit_tokens,
        free_pages=100,
        active_decodes=0,
        queued_prefills=0,
        queued_prefill_tokens=0,
        retained_blocks=0,
        token_budget_tokens=budget_tokens,
        token_budget_adapts=wanted_blocks > 0,
        wanted_blocks=wanted_blocks,
        wanted_prefill_tokens=wanted_prefill_tokens,
    )


def token_at(request_id: str, position: int) -> int:
    """The token that every faithful attempt reveals there."""
    return crc32(f"{request_id}:{position}".encode()) % 50_000


def delta(request_id: str, step: int, positions: list[int] | tuple[int, ...]) -> StepDelta:
    """What a faithful worker reveals."""
    ordered = tuple(sorted(positions))
    return StepDelta(
        step=step,
        positions=ordered,
        token_ids=tuple(token_at(request_id, position) for position in ordered),
        confidences=(0.5,) * len(ordered),
    )

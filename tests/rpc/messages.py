"""Hypothesis strategies for every core dataclass that travels. Their values are what the core may hold."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from common.core.cluster import ClusterView, WorkerSpec, WorkerView
from common.core.effects import BlockPlacement
from common.core.ids import BlockAttempt, Role, ServingMode, WorkerLife
from common.core.params import (
    CacheMode,
    ConfidenceDynamic,
    ConfidenceQuota,
    ConfidenceThreshold,
    RandomReveal,
    SamplingParams,
)
from common.core.work import (
    BlockCompletion,
    BlockWork,
    FinishReason,
    IterationReport,
    KvHandle,
    KvTransfer,
    LocalPrefill,
    NoKv,
    RemoteKv,
    RequestSpec,
    StepDelta,
)

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
positive = st.integers(1, 2**32 - 1)
names = st.text(min_size=1, max_size=12)
durations = st.floats(min_value=0, max_value=1e9)
probabilities = st.floats(0, 1, width=32)
token_ids = st.lists(uint32, max_size=6).map(tuple)
prompts = st.lists(uint32, min_size=1, max_size=6).map(tuple)

attempts = st.builds(BlockAttempt, request_id=names, block=uint32, attempt=uint32)
lives = st.builds(WorkerLife, worker_id=names, incarnation=st.integers(1, 2**64 - 1))
strategies = (
    st.builds(ConfidenceThreshold, st.floats(0, 1))
    | st.builds(ConfidenceQuota, st.integers(1, 2**31 - 1))
    | st.builds(ConfidenceDynamic, st.floats(min_value=1e-9, max_value=1e9))
    | st.builds(RandomReveal)
)
sampling_params = st.builds(
    SamplingParams, strategy=strategies, temperature=st.floats(min_value=0, max_value=1e9), seed=uint64
)


@st.composite
def _steps(draw):
    positions = tuple(sorted(draw(st.sets(uint32, max_size=6))))
    parallel: Any = {"min_size": len(positions), "max_size": len(positions)}
    return StepDelta(
        step=draw(uint32),
        positions=positions,
        token_ids=tuple(draw(st.lists(uint32, **parallel))),
        confidences=tuple(draw(st.lists(probabilities, **parallel))),
    )


steps = _steps()
completions = st.builds(
    BlockCompletion,
    prefill_forwards=uint32,
    decode_forwards=uint32,
    finish=st.none() | st.sampled_from(FinishReason),
)
handles = st.builds(
    KvHandle,
    attempt=attempts,
    owner=lives,
    transport=names,
    address=names,
    layout_fingerprint=names,
    canvas_tokens=positive,
    pages=positive,
    lease_s=uint32.map(lambda lease_ms: lease_ms / 1000),
)
sources = (
    st.builds(LocalPrefill)
    | st.builds(RemoteKv, handle=handles, first=st.none() | steps)
    | st.builds(NoKv, first=steps)
)
transfers = st.builds(KvTransfer, transfer_s=durations, exposed_s=durations, transfer_bytes=uint64)
reports = st.builds(
    IterationReport,
    iteration=uint64,
    duration_s=durations,
    decode_tokens=uint32,
    prefill_tokens_admitted=uint32,
    deficit_tokens=uint32,
    free_pages=uint32,
    active_decodes=uint32,
    queued_prefills=uint32,
    queued_prefill_tokens=uint64,
    retained_blocks=uint32,
    token_budget_tokens=uint32,
    token_budget_adapts=st.booleans(),
    decode_gap_s=durations,
    wanted_blocks=uint32,
    wanted_prefill_tokens=uint32,
)
placements = st.builds(
    BlockPlacement,
    block=uint32,
    prefill_worker_id=names,
    decode_worker_id=st.none() | names,
    overflow=st.booleans(),
    prefill_forwards=uint32,
    decode_forwards=uint32,
    attempts=uint32,
    queue_s=durations,
    prefill_s=durations,
    transfer_s=durations,
    transfer_exposed_s=durations,
    transfer_bytes=uint64,
    decode_s=durations,
)
worker_specs = st.builds(
    WorkerSpec,
    life=lives,
    role=st.sampled_from(Role),
    address=names,
    kv_transport=st.text(max_size=4),
    kv_address=st.text(max_size=12),
    layout_fingerprint=names,
    model_id=names,
    pages_total=positive,
    page_size_tokens=positive,
    max_canvas_tokens=positive,
    token_budget_tokens=positive,
    max_batch_size=positive,
    max_prefill_tokens_per_batch=positive,
    fast_link_domain=st.text(max_size=8),
    model_fingerprint=st.text(max_size=8),
)
cluster_views = st.builds(
    ClusterView,
    mode=st.sampled_from(ServingMode),
    workers=st.lists(
        st.builds(
            WorkerView,
            spec=worker_specs,
            pages_free=uint32,
            outstanding_prefill_tokens=uint64,
            active_decodes=uint32,
            draining=st.booleans(),
            report=st.none() | reports,
            live_blocks=uint32,
            length_sum_tokens=uint64,
        ),
        max_size=3,
    ).map(tuple),
    queued_blocks=uint32,
    parked_blocks=uint32,
    waiting_decode_blocks=uint32,
    running_requests=uint32,
    ended_requests=uint64,
    overload_threshold_tokens=uint32,
    replay_divergences=uint32,
    overload_threshold_adapts=st.booleans(),
)


@st.composite
def _request_specs(draw):
    block_length_tokens = draw(st.integers(1, 4))
    blocks = draw(st.integers(0, 3))
    committed = draw(st.lists(uint32, min_size=blocks * block_length_tokens, max_size=blocks * block_length_tokens))
    positions = sorted(draw(st.sets(uint32, max_size=4)))
    return RequestSpec(
        request_id=draw(names),
        prompt_token_ids=draw(prompts),
        max_tokens=draw(positive),
        block_length_tokens=block_length_tokens,
        cache_mode=draw(st.sampled_from(CacheMode)),
        sampling=draw(sampling_params),
        ignore_eos=draw(st.booleans()),
        tenant=draw(st.text(max_size=8)),
        priority=draw(st.integers(-(2**31), 2**31 - 1)),
        deadline_s=draw(st.none() | durations),
        committed_token_ids=tuple(committed),
        shown=tuple((position, draw(uint32)) for position in positions),
        idle=draw(st.booleans()),
    )


request_specs = _request_specs()


@st.composite
def _block_works(draw):
    block, block_length_tokens = draw(st.integers(0, 4)), draw(st.integers(1, 4))
    start = block * block_length_tokens
    return BlockWork(
        attempt=BlockAttempt(request_id=draw(names), block=block, attempt=draw(uint32)),
        prompt_token_ids=draw(prompts),
        generated_token_ids=tuple(draw(st.lists(uint32, min_size=start, max_size=start))),
        max_tokens=draw(st.integers(start + 1, 2**32 - 1)),
        block_length_tokens=block_length_tokens,
        cache_mode=draw(st.sampled_from(CacheMode)),
        sampling=draw(sampling_params),
        ignore_eos=draw(st.booleans()),
        canvas_generated_tokens=draw(uint32),
    )


block_works = _block_works()

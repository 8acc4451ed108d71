"""Builders of small worker configs, calls and outcomes."""

from __future__ import annotations

from common.core.ids import BlockAttempt, RequestId, Role, WorkerId, WorkerLife
from common.core.params import CacheMode, ConfidenceThreshold, SamplingParams
from common.core.work import BlockWork, KvHandle, KvTransfer, NoKv, RemoteKv, StepDelta
from common.core.worker_config import WorkerCoreConfig

EOS = 9
PAGE_SIZE_TOKENS = 4
TRANSFER = KvTransfer(transfer_s=0.5, exposed_s=0.25, transfer_bytes=1000)
PREFILL_LIFE = WorkerLife(worker_id=WorkerId("p0"), incarnation=1)


def worker_config(role: Role, **changes: int | float) -> WorkerCoreConfig:
    """A worker with 16 pages of 4 tokens, budget 64, prefill batches of 64 tokens, 4 decodes at a time."""
    settings: dict[str, int | float] = {
        "pages_total": 16,
        "page_size_tokens": PAGE_SIZE_TOKENS,
        "token_budget_tokens": 64,
        "max_prefill_tokens_per_batch": 64,
        "max_batch_size": 4,
        "kv_lease_s": 30.0,
        "kv_page_wait_s": 2.0,
        "eos_token_id": EOS,
    }
    return WorkerCoreConfig(role=role, **{**settings, **changes})  # type: ignore[arg-type]  # a table of both kinds


def attempt(name: str, *, block: int = 0, attempt: int = 0) -> BlockAttempt:
    """The attempt of that name."""
    return BlockAttempt(request_id=RequestId(name), block=block, attempt=attempt)


def work(
    which: BlockAttempt | str,
    *,
    prompt_tokens: int = 4,
    max_tokens: int = 8,
    block_length_tokens: int = 4,
    cache_mode: CacheMode = CacheMode.DUAL,
    ignore_eos: bool = False,
) -> BlockWork:
    """One block; by default block 0 of a canvas of 12 tokens (3 pages) in blocks of 4."""
    which = attempt(which) if isinstance(which, str) else which
    return BlockWork(
        attempt=which,
        prompt_token_ids=(1,) * prompt_tokens,
        generated_token_ids=(2,) * (which.block * block_length_tokens),
        max_tokens=max_tokens,
        block_length_tokens=block_length_tokens,
        cache_mode=cache_mode,
        sampling=SamplingParams(strategy=ConfidenceThreshold(0.9), temperature=0.0, seed=0),
        ignore_eos=ignore_eos,
    )


def step(number: int, tokens: dict[int, int]) -> StepDelta:
    """What forward `number` of a block revealed, as {position: token}."""
    positions = tuple(sorted(tokens))
    return StepDelta(
        step=number,
        positions=positions,
        token_ids=tuple(tokens[position] for position in positions),
        confidences=(0.5,) * len(positions),
    )


def handle_of(what: BlockWork) -> KvHandle:
    """The handle a prefill worker would have given for that block."""
    return KvHandle(
        attempt=what.attempt,
        owner=PREFILL_LIFE,
        transport="tcp",
        address="127.0.0.1:1",
        layout_fingerprint="layout",
        canvas_tokens=what.canvas_tokens,
        pages=what.pages(PAGE_SIZE_TOKENS),
        lease_s=30.0,
    )


def first_step(what: BlockWork) -> StepDelta:
    """A prefill's own step that revealed the block's first position."""
    return step(0, {what.block_start_position: 5})


def remote_kv(what: BlockWork) -> RemoteKv:
    """K/V to fetch, with one token revealed."""
    return RemoteKv(handle=handle_of(what), first=first_step(what))


def early_kv(what: BlockWork) -> RemoteKv:
    """K/V to fetch while it is computed."""
    return RemoteKv(handle=handle_of(what), first=None)


def no_kv(what: BlockWork) -> NoKv:
    """Cache mode none, with one token revealed."""
    return NoKv(first=first_step(what))

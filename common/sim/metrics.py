"""What a run amounts to: means and percentiles of what users and operators feel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from common.core.ids import Role
from common.sim.cluster import SimResult
from common.sim.records import FINISHED, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A sample in five numbers; all nan when it is empty."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Times in seconds, of finished requests. Per request: `latency` (arrival to end), `queueing` (blocks waiting for
    their prefill to start), `decode` (prefill's end or K/V's arrival to block end), `first_commit` (arrival to first
    token). `decode_gap`: between two decode steps of a block. `kv_transfer`: per transfer.

    `utilisation`: share of the run that the workers of a role spent in forwards. `query_tokens_per_s`: per worker.
    `overflow_share`: of all blocks. `failures`: by reason; `unfinished` and `ended_twice` are 0.
    """

    requests: int
    finished: int
    failures: dict[str, int]
    unfinished: int
    ended_twice: int
    span_s: float
    requests_per_s: float
    output_tokens_per_s: float
    latency: Spread
    queueing: Spread
    decode: Spread
    decode_gap: Spread
    first_commit: Spread
    kv_transfer: Spread
    kv_transfer_per_request: Spread
    utilisation: dict[str, float]
    query_tokens_per_s: dict[str, float]
    overflow_share: float
    blocks: int
    repeated_attempts: int
    tokens_per_forward: float
    core_events: int
    effects: int
    effects_hash: str


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between neighbours of a sorted sample; nan when it is empty."""
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Iterable[float]) -> Spread:
    """The five numbers of a sample."""
    ordered = sorted(values)
    mean = math.fsum(ordered) / len(ordered) if ordered else math.nan
    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Spread(count=len(ordered), mean=mean, p50=p50, p90=p90, p99=p99)


def summarise(result: SimResult) -> Metrics:
    """The metrics of a run."""
    recorder, span_s = result.recorder, result.span_s
    records = list(recorder.requests.values())
    finished = [record for record in records if record.outcome == FINISHED]
    output_tokens = sum(record.shape.output_tokens for record in finished)
    blocks = sum(record.blocks for record in records)
    forwards = sum(record.forwards for record in finished)
    busy_s, query_tokens = _work_by_role(result)
    failures = Counter(record.outcome for record in records if record.outcome not in (None, FINISHED))
    return Metrics(
        requests=len(records),
        finished=len(finished),
        failures={str(reason): count for reason, count in sorted(failures.items(), key=str)},
        unfinished=sum(record.outcome is None for record in records),
        ended_twice=sum(record.ends > 1 for record in records),
        span_s=span_s,
        requests_per_s=_ratio(len(finished), span_s),
        output_tokens_per_s=_ratio(output_tokens, span_s),
        latency=spread(_latencies_s(finished)),
        queueing=spread(record.queue_s for record in finished),
        decode=spread(record.decode_s for record in finished),
        decode_gap=spread(recorder.decode_gaps_s),
        first_commit=spread(_first_commits_s(finished)),
        kv_transfer=spread(recorder.transfers_s),
        kv_transfer_per_request=spread(record.transfer_s for record in finished if record.transfer_s),
        utilisation=_per_role(result, busy_s),
        query_tokens_per_s=_per_role(result, query_tokens),
        overflow_share=_ratio(sum(record.overflow_blocks for record in records), blocks),
        blocks=blocks,
        repeated_attempts=sum(record.attempts - record.blocks for record in finished),
        tokens_per_forward=_ratio(output_tokens, forwards),
        core_events=recorder.core_events,
        effects=result.effects,
        effects_hash=result.digest,
    )


def _latencies_s(records: Iterable[RequestRecord]) -> Iterator[float]:
    return (record.end_s - record.shape.arrival_s for record in records if record.end_s is not None)


def _first_commits_s(records: Iterable[RequestRecord]) -> Iterator[float]:
    return (r.first_commit_s - r.shape.arrival_s for r in records if r.first_commit_s is not None)


def _work_by_role(result: SimResult) -> tuple[dict[Role, float], dict[Role, float]]:
    """Seconds in forwards, and query tokens, summed over the workers of each role."""
    busy_s, tokens = dict.fromkeys(Role, 0.0), dict.fromkeys(Role, 0.0)
    for worker_id, forwards in result.recorder.forwards.items():
        role = result.roles[worker_id]
        busy_s[role] += math.fsum(forward.duration_s for forward in forwards)
        tokens[role] += sum(forward.decode_tokens + forward.prefill_tokens for forward in forwards)
    return busy_s, tokens


def _per_role(result: SimResult, sums: dict[Role, float]) -> dict[str, float]:
    """A sum per worker and second, for the roles there are."""
    workers = Counter(result.roles.values())
    return {role.value: _ratio(sums[role], workers[role] * result.span_s) for role in Role if workers[role]}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0

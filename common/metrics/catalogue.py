"""Every instrument of every service. docs/metrics.md explains them; a test compares the two lists.

Names: `sangam_`, what is measured, its unit last (`_total` ends a counter).
"""

from __future__ import annotations

from common.metrics.instruments import Counter, Gauge, Histogram, Instrument

# Every service.
LEAKED_PAGES = Gauge("sangam_leaked_pages", "KV pages, or reservations of them, held for nobody")
LEAKED_REQUESTS = Gauge("sangam_leaked_requests", "Requests, calls or places held for nobody")
LEAKED_LEASES = Gauge("sangam_leaked_leases", "K/V kept, or counted as kept, past its lease or for nobody")
CONSERVATION_BROKEN = Gauge("sangam_conservation_broken", "1 while the books of an idle service do not add up")
RPCS = Counter(
    "sangam_rpcs_total", "Calls answered, by method and outcome (OK or a reason)", labels=("method", "outcome")
)
RPC_S = Histogram("sangam_rpc_s", "How long calls took, streams to their end", labels=("method",))

# Scheduler and gateway.
REPLAY_DIVERGENCE = Counter(
    "sangam_replay_divergence_total", "Tokens revealed again that differed from those already shown (which stay)"
)

# Gateway.
REQUESTS = Counter("sangam_requests_total", "Requests ended, by outcome", labels=("outcome",))
INFLIGHT_REQUESTS = Gauge("sangam_inflight_requests", "Requests that hold a place in the gateway")
INFLIGHT_TOKENS = Gauge("sangam_inflight_tokens", "Canvas tokens of those requests")
TIME_TO_FIRST_COMMIT_S = Histogram("sangam_time_to_first_commit_s", "From admission to the first committed token")
REQUEST_S = Histogram("sangam_request_s", "From admission to the end of requests that ended well")
PROMPT_TOKENS = Counter("sangam_prompt_tokens_total", "Prompt tokens of requests that ended well")
COMPLETION_TOKENS = Counter("sangam_completion_tokens_total", "Tokens generated for requests that ended well")

CARRIED_DIVERGENCE = Counter(
    "sangam_carried_divergence_total", "Tokens brought along by clients that differ from those of the request here"
)
AUDITS = Counter(
    "sangam_audits_total", "Requests chosen for the audit, by how it ended", labels=("cache_mode", "outcome")
)
AUDIT_TOKENS = Counter(
    "sangam_audit_tokens_total", "Tokens compared with cache mode none", labels=("cache_mode", "agreement")
)
AUDIT_BACKLOG = Gauge("sangam_audit_backlog", "Finished requests that wait to be audited")

# Scheduler.
RUNNING_REQUESTS = Gauge("sangam_running_requests", "Requests taken in and not ended")
QUEUED_BLOCKS = Gauge("sangam_queued_blocks", "Blocks that wait for a prefill")
PARKED_BLOCKS = Gauge("sangam_parked_blocks", "Blocks of those that fit no live worker")
WAITING_DECODE_BLOCKS = Gauge("sangam_waiting_decode_blocks", "Prefilled blocks that wait for decode memory")
WAITING_IDLE_BLOCKS = Gauge("sangam_waiting_idle_blocks", "Blocks of idle requests (audits) that wait for their turn")
OUTSTANDING_PREFILL_TOKENS = Gauge(
    "sangam_outstanding_prefill_tokens",
    "Canvas tokens of prefills given to a worker and not done",
    labels=("worker_id",),
)
OVERLOAD_THRESHOLD_TOKENS = Gauge("sangam_overload_threshold_tokens", "Theta in force")
LIVE_WORKERS = Gauge("sangam_live_workers", "Registered workers", labels=("role",))
BLOCKS = Counter("sangam_blocks_total", "Blocks committed")
BLOCKS_RETRIED = Counter("sangam_blocks_retried_total", "Further attempts at blocks, by reason", labels=("reason",))
OVERFLOWED_PREFILLS = Counter("sangam_overflowed_prefills_total", "Committed blocks whose prefill overflowed")
EARLY_DECODES = Counter("sangam_early_decodes_total", "Decode calls made while their prefill ran")
EARLY_DECODES_UNUSED = Counter(
    "sangam_early_decodes_unused_total", "Those of them that failed before it ended, or whose prefill left no K/V"
)
FORWARDS = Counter("sangam_forwards_total", "Forwards that committed blocks took, by kind", labels=("kind",))
BLOCK_QUEUE_S = Histogram("sangam_block_queue_s", "What committed blocks waited for workers")
BLOCK_PREFILL_S = Histogram("sangam_block_prefill_s", "Prefill calls of committed blocks")
BLOCK_DECODE_S = Histogram("sangam_block_decode_s", "From K/V at hand to block complete")

# Workers.
ITERATION_S = Histogram("sangam_iteration_s", "Forwards, by what they held", labels=("kind",))
ITERATION_TOKENS = Counter("sangam_iteration_tokens_total", "Query tokens of forwards, by kind", labels=("kind",))
DECODE_GAP_S = Gauge("sangam_decode_gap_s", "Smoothed time between two steps of a decode")
DEFICIT_TOKENS = Gauge("sangam_deficit_tokens", "Budget left over by earlier iterations")
TOKEN_BUDGET_TOKENS = Gauge("sangam_token_budget_tokens", "Tau in force")
WANTED_BLOCKS = Gauge("sangam_wanted_blocks", "Blocks that an adaptive token budget wants at once")
FREE_PAGES = Gauge("sangam_free_pages", "Free KV pages")
ACTIVE_DECODES = Gauge("sangam_active_decodes", "Decodes in flight")
QUEUED_PREFILLS = Gauge("sangam_queued_prefills", "Prefills that wait for admission")
QUEUED_PREFILL_TOKENS = Gauge("sangam_queued_prefill_tokens", "Canvas tokens of those prefills")
RETAINED_BLOCKS = Gauge("sangam_retained_blocks", "Blocks whose K/V is kept for a decode worker")
KV_TRANSFER_S = Histogram("sangam_kv_transfer_s", "Fetches of a block's K/V", labels=("overlap",))
KV_TRANSFER_EXPOSED_S = Histogram(
    "sangam_kv_transfer_exposed_s", "The part of a fetch that no prefill hides", labels=("overlap",)
)
KV_TRANSFER_BYTES = Counter(
    "sangam_kv_transfer_bytes_total", "Bytes of K/V fetched, by what carried them", labels=("path",)
)
KV_FETCH_FAILURES = Counter("sangam_kv_fetch_failures_total", "Fetches that failed, by reason", labels=("reason",))


def instruments() -> dict[str, Instrument]:
    """All of them by name."""
    found = [value for value in globals().values() if isinstance(value, Counter | Gauge | Histogram)]
    return {instrument.about.name: instrument for instrument in found}

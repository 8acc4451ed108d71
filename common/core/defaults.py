"""The one place for default values of policy settings. Configs, CLI and simulator import them from here."""

from __future__ import annotations

from common.core.options import Dispatch, QueueOrder

DEFAULT_TOKEN_BUDGET_TOKENS = 1024
"""τ: query tokens one worker iteration may spend (Algorithm 1)."""

DEFAULT_OVERLOAD_THRESHOLD_TOKENS = 16384
"""θ: outstanding prefill tokens at which a worker takes no further prefill (Algorithm 2)."""

DEFAULT_PAGE_SIZE_TOKENS = 16
"""Canvas positions per KV page."""

DEFAULT_MAX_BATCH_SIZE = 128
"""Most decodes in one iteration."""

DEFAULT_MAX_PREFILL_TOKENS_PER_BATCH = 4096
"""Most canvas tokens a prefill worker packs into one forward; a longer canvas runs alone."""

DEFAULT_KV_LEASE_S = 30.0
"""How long a prefill worker keeps K/V for a decode worker that has not come for it."""

DEFAULT_KV_PAGE_WAIT_S = 2.0
"""How long a Decode call may wait at its worker for pages before it ends NO_KV_PAGES."""

DEFAULT_NO_PAGES_BACKOFF_S = 0.05
"""How long the scheduler leaves a worker alone after it answered NO_KV_PAGES."""

DEFAULT_MAX_ATTEMPTS = 8
"""Attempts at one block before its request fails with ATTEMPTS_EXHAUSTED."""

MAX_WAITING_IDLE_BLOCKS = 64
"""Blocks of idle requests that may wait; they are audits, and nobody's answer."""

DEFAULT_MAX_QUEUED_REQUESTS = 10_000
"""Requests waiting for their first placement before the next is refused with QUEUE_FULL."""

DEFAULT_MAX_INFLIGHT_REQUESTS = 4096
"""Requests a gateway admits at once."""

DEFAULT_MAX_INFLIGHT_TOKENS = 8_388_608
"""Canvas tokens a gateway admits at once."""

DEFAULT_REQUEST_TTL_S = 120.0
"""How long a gateway keeps a finished request for clients that come back for it. Each takes some 6 KiB."""

DEFAULT_MAX_KEPT_REQUESTS = 10_000
"""Finished requests that a gateway keeps."""

DEFAULT_MAX_KEPT_BYTES = 134_217_728
"""Memory that they may take."""

DEFAULT_MAX_DETACH_GRACE_S = 60.0
"""Longest time that a request goes on while none of its clients is there."""

DEFAULT_HEARTBEAT_TIMEOUT_S = 3.0
"""Longest silence of a worker before its life counts as over."""

DEFAULT_LEADER_LEASE_S = 2.0
"""How long the leader of several schedulers leads without word from the lease's Redis."""

DEFAULT_DRAIN_S = 30.0
"""How long work in flight, and K/V still owed (a lease's time), may take to end once a process is told to stop."""

DEFAULT_HEARTBEAT_KEEPALIVE_S = 0.5
"""Longest pause between two heartbeats of an idle worker."""

DEFAULT_REPORT_INTERVAL_S = 0.02
"""Shortest time between two iteration reports of one worker; reports in between are coalesced."""

DEFAULT_STREAM_INTERVAL_S = 0.01
"""Least time between two messages of a decode stream: deltas of faster steps share one, its first and last apart."""

DEFAULT_QUICK_STEPS_WAIT_S = 0.04
"""Longest that a worker keeps deltas of steps that took less than `DEFAULT_STREAM_INTERVAL_S` each: nobody sees 25
messages a second come one by one. Slower steps do not wait, nor does a block's first delta, or its end."""

DEFAULT_PEER_BACKOFF_S = 0.25
"""First back-off from a worker whose call broke; doubles with each failure in a row."""

MAX_PEER_BACKOFF_S = 2.0
"""Longest back-off from one worker: longer than that, its heartbeat decides."""

MAX_REFUSALS_PER_ATTEMPT = 64
"""NO_KV_PAGES answers to one attempt before it counts as a failed attempt, so that no request waits for ever."""

DEFAULT_PREFILL_POLICY = "least_outstanding_tokens"
"""Which prefill worker gets a prefill."""

DEFAULT_DECODE_POLICY = "max_free_pages"
"""Which decode worker gets a prefilled block."""

DEFAULT_COLOCATED_POLICY = "least_outstanding_tokens"
"""Which worker gets a block in colocated mode."""

DEFAULT_KV_OVERLAP = True
"""Whether a decode worker fetches K/V while the prefill computes it."""

MIN_KEPT_SHARE = 0.9
"""Share of recent prefills that must have left K/V for the next to be read early: a call for nothing costs more than
one that is early gains."""

DEFAULT_TOPOLOGY_ALPHA = 0.7
"""Share of the roomiest worker's free memory that a worker on a fast link needs to be preferred (topology_guarded)."""

DEFAULT_LENGTH_SLACK = 0.1
"""How far above the smallest projected length sum a worker may be to be considered (balanced_length)."""

DEFAULT_QUEUE_ORDER = QueueOrder.ARRIVAL
"""Order of the waiting blocks of one tenant and priority."""

DEFAULT_DISPATCH = Dispatch.LATE
"""When a prefill is bound to a worker."""

DEFAULT_DISPATCH_AHEAD_ITERATIONS = 2
"""With late dispatch: how many iterations' worth of prefills a worker may be bound to (one runs, one waits)."""

DEFAULT_TENANT_QUANTUM_TOKENS = 4096
"""Canvas tokens that a tenant of weight 1 may place per round of the deficit round robin."""

DEFAULT_MAX_QUEUE_WAIT_S = 30.0
"""A block that has waited this long goes before everything younger of its tenant, whatever priority or order say."""

DEFAULT_STUCK_FORWARD_S = 60.0
"""A forward that runs this long is taken for hung, and its worker ends itself; a GPU's longest take a few seconds."""

ADAPTIVE_PLAIN_SHARE = 0.23
"""Share of a worker's time that iterations without a prefill are to take, with an adaptive token budget."""

DEFAULT_TARGET_DECODE_GAP_S = 0.0
"""Mean time between two steps of a decode that an adaptive token budget keeps to, at the price of waiting (0: none)."""

MIN_ADAPTIVE_THRESHOLD_TOKENS = 1024
"""Smallest adaptive overload threshold."""

MAX_ADAPTIVE_THRESHOLD_TOKENS = 131_072
"""Largest adaptive overload threshold."""

EARLY_FETCH_S = 2 * DEFAULT_STUCK_FORWARD_S + DEFAULT_KV_LEASE_S
"""Longest that a fetch begun before its prefill may take: two forwards, one before it and its own, then a lease."""

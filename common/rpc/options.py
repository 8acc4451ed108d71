"""The one place for gRPC options, so that both ends of every connection agree.

Measured reasons stand in the design, section 7: 1 500 calls at once need a higher pending limit; a silent stream
survives keepalive only if the server allows pings without data; the default 4 MiB limit is too small.
"""

from __future__ import annotations

import json

from common.rpc.shared_port import CONNECTION_AGE_S

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_KEEPALIVE_TIME_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 5_000
_MAX_PENDING_REQUESTS = 100_000
_MIN_RECONNECT_BACKOFF_MS = 1_000
# A service that was restarted at its place is found again within half a second, not two.
_MAX_RECONNECT_BACKOFF_MS = 500
_INITIAL_RECONNECT_BACKOFF_MS = 100

Options = list[tuple[str, int | str]]

# Idempotent calls only; the scheduler core owns every other retry.
_RETRIED: tuple[dict[str, str], ...] = (
    {"service": "sangam.v1.KvRegistryService"},
    {"service": "sangam.v1.SchedulerService", "method": "RegisterWorker"},
    {"service": "sangam.v1.InferenceService", "method": "GetModel"},
)
_RETRY_POLICY = {
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def _shared_options() -> Options:
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Half the keepalive time: a ping that comes a little early is no offence.
        ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_TIME_MS // 2),
    ]


def server_options(*, shares_port: bool = False) -> Options:
    """Options of every server; `shares_port`: another one may listen at its port (see `common.rpc.shared_port`)."""
    connection_age: Options = [("grpc.max_connection_age_ms", round(CONNECTION_AGE_S * 1000))] if shares_port else []
    return [
        *_shared_options(),
        ("grpc.server.max_pending_requests", _MAX_PENDING_REQUESTS),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_REQUESTS),
        # A second process on the same port must fail to start, not take half of the calls: unless it is the next life.
        ("grpc.so_reuseport", int(shares_port)),
        *connection_age,
    ]


def channel_options() -> Options:
    """Options of every channel, with the retry policy of the idempotent calls."""
    service_config = {"methodConfig": [{"name": list(_RETRIED), "retryPolicy": _RETRY_POLICY}]}
    return [
        *_shared_options(),
        ("grpc.service_config", json.dumps(service_config)),
        ("grpc.enable_retries", 1),
        # Services talk to each other directly, whatever proxy the environment names for the web.
        ("grpc.enable_http_proxy", 0),
        ("grpc.initial_reconnect_backoff_ms", _INITIAL_RECONNECT_BACKOFF_MS),
        ("grpc.min_reconnect_backoff_ms", _MIN_RECONNECT_BACKOFF_MS),
        ("grpc.max_reconnect_backoff_ms", _MAX_RECONNECT_BACKOFF_MS),
    ]

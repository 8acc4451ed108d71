"""Settings of the services: one frozen dataclass each, filled from flags, then environment, then defaults.

A field named `kv_pages` has the flag `--kv-pages` and the variable `SANGAM_KV_PAGES`; its help, unit, range and
choices stand in the field's metadata, so the dataclass is the only place that knows a setting.
"""

from __future__ import annotations

import argparse
import os
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from common.config_flags import env_of, flag_of, help_of
from common.config_values import (
    AUTO,
    DTYPE_CHOICES,
    KV_TRANSPORT_CHOICES,
    LOG_LEVEL_CHOICES,
    TokensOrAuto,
    about,
    parse_value,
)
from common.core import defaults
from common.core.ids import ServingMode
from common.core.options import Dispatch, QueueOrder
from common.core.placement import COLOCATED_POLICIES, DECODE_POLICIES, PREFILL_POLICIES
from common.errors import ConfigError

_SCHEDULERS = "host:port of the scheduler, or of every scheduler with commas: the one that leads is followed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """What every service has."""

    host: str = field(default="127.0.0.1", metadata=about("interface to listen on"))
    port: int = field(default=0, metadata=about("TCP port to listen on (0: any free one)", minimum=0, maximum=65535))
    ready_file: Path | None = field(
        default=None, metadata=about("file that gets address and pid as JSON once the service serves")
    )
    log_level: str = field(default="info", metadata=about("least severe log level", choices=LOG_LEVEL_CHOICES))
    otlp_endpoint: str = field(
        default="", metadata=about("host:port of an OTLP/gRPC collector (empty: no export)", form="address")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig(ServiceConfig):
    """Settings of `services.gateway`."""

    scheduler_address: str = field(metadata=about(_SCHEDULERS, form="addresses"))
    model_dir: Path = field(metadata=about("folder of the model (config and tokenizer; weights are not read)"))
    max_inflight_requests: int = field(
        default=defaults.DEFAULT_MAX_INFLIGHT_REQUESTS, metadata=about("requests admitted at once", minimum=1)
    )
    max_inflight_tokens: int = field(
        default=defaults.DEFAULT_MAX_INFLIGHT_TOKENS, metadata=about("canvas tokens admitted at once", minimum=1)
    )
    default_deadline_s: float = field(
        default=0.0, metadata=about("deadline of a request whose client sets none, in seconds (0: none)", minimum=0)
    )
    drain_s: float = field(
        default=defaults.DEFAULT_DRAIN_S,
        metadata=about("how long work in flight may take to end once told to stop, in seconds", minimum=0),
    )
    audit_rate: float = field(
        default=0.0,
        metadata=about(
            "share of finished requests that is run again in cache mode none while nothing else waits, to measure what "
            "caching costs (0: none)",
            minimum=0,
            maximum=1,
        ),
    )
    request_ttl_s: float = field(
        default=defaults.DEFAULT_REQUEST_TTL_S,
        metadata=about("how long a finished request can be had again by its request_id, in seconds", minimum=0),
    )
    max_kept_requests: int = field(
        default=defaults.DEFAULT_MAX_KEPT_REQUESTS,
        metadata=about("finished requests kept for that; the oldest go first", minimum=0),
    )
    max_kept_bytes: int = field(
        default=defaults.DEFAULT_MAX_KEPT_BYTES,
        metadata=about("memory that they may take, in bytes, about", minimum=0),
    )
    share_port: bool = field(
        default=False,
        metadata=about(
            "let the next life listen at the same port before this one stops; SIGUSR2 tells this one that it is there"
        ),
    )
    max_detach_grace_s: float = field(
        default=defaults.DEFAULT_MAX_DETACH_GRACE_S,
        metadata=about(
            "longest time that a request goes on for a client whose call broke and who asked for it, in seconds",
            minimum=0,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreServiceConfig(ServiceConfig):
    """What every service has that runs a core."""

    story_dir: Path | None = field(
        default=None,
        metadata=about("folder that gets the story of the core, event by event, for `sangam replay` (empty: none)"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerServiceConfig(CoreServiceConfig):
    """Settings of `services.scheduler`."""

    mode: ServingMode = field(default=ServingMode.HYBRID, metadata=about("how prefills and decodes share the workers"))
    overload_threshold: TokensOrAuto = field(
        default=defaults.DEFAULT_OVERLOAD_THRESHOLD_TOKENS,
        metadata=about(
            "theta: outstanding prefill tokens at which a worker counts as overloaded (hybrid mode); "
            "auto: as many as make waiting there and overflowing take equally long",
            minimum=1,
        ),
    )
    overflow: bool = field(default=True, metadata=about("let prefills overflow onto decode workers (hybrid mode)"))
    prefill_policy: str = field(
        default=defaults.DEFAULT_PREFILL_POLICY,
        metadata=about("which prefill worker gets a prefill", choices=tuple(PREFILL_POLICIES)),
    )
    decode_policy: str = field(
        default=defaults.DEFAULT_DECODE_POLICY,
        metadata=about("which decode worker gets a prefilled block", choices=tuple(DECODE_POLICIES)),
    )
    colocated_policy: str = field(
        default=defaults.DEFAULT_COLOCATED_POLICY,
        metadata=about("which worker gets a block in colocated mode", choices=tuple(COLOCATED_POLICIES)),
    )
    topology_alpha: float = field(
        default=defaults.DEFAULT_TOPOLOGY_ALPHA,
        metadata=about(
            "topology_guarded: free memory a worker on a fast link needs, as a share of the roomiest worker's",
            minimum=0,
            maximum=1,
        ),
    )
    length_slack: float = field(
        default=defaults.DEFAULT_LENGTH_SLACK,
        metadata=about(
            "balanced_length: how far above the smallest projected length sum a worker may be, as a share of it",
            minimum=0,
        ),
    )
    kv_overlap: bool = field(
        default=defaults.DEFAULT_KV_OVERLAP,
        metadata=about("let a decode worker fetch each layer's K/V while the prefill computes the next"),
    )
    sticky_workers: bool = field(
        default=False,
        metadata=about("let a request's next block go to the worker of its last one while that has room (colocated)"),
    )
    queue_order: QueueOrder = field(
        default=defaults.DEFAULT_QUEUE_ORDER,
        metadata=about("order of waiting blocks within a tenant and priority"),
    )
    dispatch: Dispatch = field(
        default=defaults.DEFAULT_DISPATCH,
        metadata=about("bind a prefill to a worker as soon as one has room, or only when one will admit it soon"),
    )
    dispatch_ahead: int = field(
        default=defaults.DEFAULT_DISPATCH_AHEAD_ITERATIONS,
        metadata=about("late dispatch: iterations' worth of prefills a worker may be bound to", minimum=1),
    )
    max_gen_len: int = field(
        default=0,
        metadata=about(
            "generated tokens of every canvas, whatever a request asks for; more is refused (0: as many as asked for)",
            minimum=0,
        ),
    )
    tenant_weights: str = field(
        default="",
        metadata=about("shares of tenants as name=weight,... in whole numbers (others: 1)", form="weights"),
    )
    tenant_quantum: int = field(
        default=defaults.DEFAULT_TENANT_QUANTUM_TOKENS,
        metadata=about("canvas tokens a tenant of weight 1 may place per round of fair sharing", minimum=1),
    )
    max_queue_wait_s: float = field(
        default=defaults.DEFAULT_MAX_QUEUE_WAIT_S,
        metadata=about(
            "wait after which a block goes before all younger ones of its tenant, whatever the priority, in seconds",
            above=0,
        ),
    )
    kv_store_address: str = field(
        default="", metadata=about("host:port of the KV registry (empty: none)", form="address")
    )
    advertise_host: str = field(
        default="",
        metadata=about(
            "host name or IP that this scheduler is told by to those who ask another for the leader "
            "(empty: the interface listened on, or that routes to the lease's Redis)"
        ),
    )
    max_attempts: int = field(
        default=defaults.DEFAULT_MAX_ATTEMPTS,
        metadata=about("attempts at one block before its request fails", minimum=1),
    )
    max_queued_requests: int = field(
        default=defaults.DEFAULT_MAX_QUEUED_REQUESTS,
        metadata=about("requests waiting before the next is refused", minimum=1),
    )
    heartbeat_timeout_s: float = field(
        default=defaults.DEFAULT_HEARTBEAT_TIMEOUT_S,
        metadata=about("longest silence of a worker before it counts as lost, in seconds", above=0),
    )
    leader_lease: str = field(
        default="",
        metadata=about(
            "redis://host:port/db where several schedulers agree on which of them leads (empty: this one always does)",
            form="redis",
        ),
    )
    leader_lease_s: float = field(
        default=defaults.DEFAULT_LEADER_LEASE_S,
        metadata=about(
            "how long a leader's lease lasts there when it dies and renews it no more, in seconds", minimum=0.5
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(CoreServiceConfig):
    """Settings of `services.prefill_worker` and `services.decode_worker`."""

    worker_id: str = field(default="", metadata=about("stable name of the worker (empty: role and a random suffix)"))
    scheduler_address: str = field(metadata=about(_SCHEDULERS, form="addresses"))
    kv_store_address: str = field(
        default="", metadata=about("host:port of the KV registry (empty: none)", form="address")
    )
    advertise_host: str = field(
        default="",
        metadata=about(
            "host name or IP that peers reach this worker by (empty: the interface that routes to the scheduler)"
        ),
    )
    model_dir: Path = field(metadata=about("folder of the checkpoint"))
    device: str = field(default="cpu", metadata=about("torch device: cpu, cuda, cuda:0, ..."))
    dtype: str = field(
        default="auto",
        metadata=about(
            "type of weights and K/V (auto: float32 on cpu, bfloat16 on cuda)",
            choices=DTYPE_CHOICES,
        ),
    )
    kv_pages: int = field(default=0, metadata=about("KV pages in the pool (0: as many as fit)", minimum=0))
    page_size_tokens: int = field(
        default=defaults.DEFAULT_PAGE_SIZE_TOKENS, metadata=about("canvas tokens per KV page", minimum=1)
    )
    token_budget: TokensOrAuto = field(
        default=defaults.DEFAULT_TOKEN_BUDGET_TOKENS,
        metadata=about(
            "tau: query tokens one iteration may spend; auto: set by what iterations cost, as is the number of blocks",
            minimum=1,
        ),
    )
    target_decode_gap_s: float = field(
        default=defaults.DEFAULT_TARGET_DECODE_GAP_S,
        metadata=about(
            "token budget auto: mean time between two steps of a decode to keep to, in seconds (0: no target)",
            minimum=0,
        ),
    )
    max_prefill_tokens_per_batch: int = field(
        default=defaults.DEFAULT_MAX_PREFILL_TOKENS_PER_BATCH,
        metadata=about("most canvas tokens a prefill worker packs into one forward", minimum=1),
    )
    max_batch_size: int = field(
        default=defaults.DEFAULT_MAX_BATCH_SIZE, metadata=about("most decodes in one iteration", minimum=1)
    )
    fast_link_domain: str = field(
        default="",
        metadata=about("name shared by workers with fast links to each other (empty: those on the same host)"),
    )
    kv_transport: str = field(
        default=AUTO,
        metadata=about(
            "what moves K/V between workers; auto: out of memory on one machine, else ucx where both have it, else tcp",
            choices=KV_TRANSPORT_CHOICES,
        ),
    )
    kv_port: int = field(
        default=0,
        metadata=about(
            "TCP port of the K/V data plane of a prefill worker (0: any free one)", minimum=0, maximum=65535
        ),
    )
    kv_lease_s: float = field(
        default=defaults.DEFAULT_KV_LEASE_S,
        metadata=about("how long K/V waits for a decode worker, in seconds", above=0),
    )
    stuck_forward_s: float = field(
        default=defaults.DEFAULT_STUCK_FORWARD_S,
        metadata=about(
            "longest a forward may run before the worker gives itself up, in seconds (0: no limit); "
            "raise it for a large model on cpu",
            minimum=0,
        ),
    )
    drain_s: float = field(
        default=defaults.DEFAULT_DRAIN_S,
        metadata=about("how long work in flight may take to end once told to stop, in seconds", minimum=0),
    )
    torch_threads: int = field(default=0, metadata=about("CPU threads per forward (0: torch's own choice)", minimum=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStoreConfig(CoreServiceConfig):
    """Settings of `services.kv_store`."""

    registry: str = field(
        default="memory",
        metadata=about("where entries are kept: memory, or redis://host:port/db", form="registry"),
    )


ConfigT = TypeVar("ConfigT", bound=ServiceConfig)


def load_config(
    cls: type[ConfigT], argv: Sequence[str], prog: str, *, environ: Mapping[str, str] | None = None
) -> ConfigT:
    """Read `cls` from `argv` (flags), then `environ` (default: the process'), then the defaults.

    Raises ConfigError naming the option and what it allows; `--help` prints and raises SystemExit(0).
    """
    environ = os.environ if environ is None else environ
    hints = typing.get_type_hints(cls)
    given = vars(_parser(cls, hints, prog).parse_args(argv))
    values: dict[str, Any] = {}
    for setting in fields(cls):
        text, source = _text_of(setting, given, environ)
        if text is not None:
            values[setting.name] = parse_value(setting, hints[setting.name], text, source)
        elif setting.default is MISSING:
            raise ConfigError(f"{flag_of(setting.name)} is required (or set {env_of(setting.name)})")
    return cls(**values)


def exit_for_user_error(prog: str, error: Exception) -> NoReturn:
    """End the process the way every service answers a user's mistake: one line on stderr, exit code 2."""
    text = " ".join(str(error).split())
    print(f"{prog}: error: {text}", file=sys.stderr)
    sys.exit(2)


class _Parser(argparse.ArgumentParser):
    """argparse that reports mistakes as ConfigError instead of leaving the process by itself."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parser(cls: type[ServiceConfig], hints: Mapping[str, Any], prog: str) -> _Parser:
    parser = _Parser(prog=prog, description=cls.__doc__, allow_abbrev=False)
    for setting in fields(cls):
        flag, help_text = flag_of(setting.name), help_of(setting, hints[setting.name])
        # SUPPRESS: only what was really given is in the namespace, so that the environment can fill the rest.
        if hints[setting.name] is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, action=action, default=argparse.SUPPRESS, help=help_text)
        else:
            metavar = setting.name.upper()
            parser.add_argument(flag, metavar=metavar, default=argparse.SUPPRESS, help=help_text)
    return parser


def _text_of(setting: Field[Any], given: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The raw value and the name of the option it came from."""
    if setting.name in given:
        return str(given[setting.name]), flag_of(setting.name)
    return environ.get(env_of(setting.name)), env_of(setting.name)

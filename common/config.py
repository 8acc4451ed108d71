"""Settings of the services: one frozen dataclass each, filled from flags, then environment, then defaults.

A field named `kv_pages` has the flag `--kv-pages` and the variable `SANGAM_KV_PAGES`; its help, unit, range and
choices stand in the field's metadata, so the dataclass is the only place that knows a setting.
"""

from __future__ import annotations

import argparse
import enum
import math
import os
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from common.core import defaults
from common.core.ids import ServingMode
from common.errors import ConfigError

ENV_PREFIX = "SANGAM_"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_REDIS_URL = re.compile(r"redis://(?P<address>[^/?#@\s]+)(/[0-9]{0,5})?")


def _about(
    help_text: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: Sequence[str] | None = None,
    is_address: bool = False,
    is_registry: bool = False,
) -> dict[str, Any]:
    """Metadata of a setting: its command-line help and its allowed values."""
    return {
        "help": help_text,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "choices": choices,
        "is_address": is_address,
        "is_registry": is_registry,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """What every service has."""

    host: str = field(default="127.0.0.1", metadata=_about("interface to listen on"))
    port: int = field(default=0, metadata=_about("TCP port to listen on (0: any free one)", minimum=0, maximum=65535))
    ready_file: Path | None = field(
        default=None, metadata=_about("file that gets address and pid as JSON once the service serves")
    )
    log_level: str = field(
        default="info", metadata=_about("least severe log level", choices=("debug", "info", "warning", "error"))
    )
    otlp_endpoint: str = field(
        default="", metadata=_about("host:port of an OTLP/gRPC collector (empty: no export)", is_address=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig(ServiceConfig):
    """Settings of `services.gateway`."""

    scheduler_address: str = field(metadata=_about("host:port of the scheduler", is_address=True))
    model_dir: Path = field(metadata=_about("folder of the model (config and tokenizer; weights are not read)"))
    max_inflight_requests: int = field(
        default=defaults.DEFAULT_MAX_INFLIGHT_REQUESTS, metadata=_about("requests admitted at once", minimum=1)
    )
    max_inflight_tokens: int = field(
        default=defaults.DEFAULT_MAX_INFLIGHT_TOKENS, metadata=_about("canvas tokens admitted at once", minimum=1)
    )
    default_deadline_s: float = field(
        default=0.0, metadata=_about("deadline of a request whose client sets none, in seconds (0: none)", minimum=0)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerServiceConfig(ServiceConfig):
    """Settings of `services.scheduler`."""

    mode: ServingMode = field(default=ServingMode.HYBRID, metadata=_about("how prefills and decodes share the workers"))
    overload_threshold: int = field(
        default=defaults.DEFAULT_OVERLOAD_THRESHOLD_TOKENS,
        metadata=_about("theta: outstanding prefill tokens at which a worker counts as overloaded", minimum=1),
    )
    overflow: bool = field(default=True, metadata=_about("let prefills overflow onto decode workers (hybrid mode)"))
    kv_store_address: str = field(
        default="", metadata=_about("host:port of the KV registry (empty: none)", is_address=True)
    )
    max_attempts: int = field(
        default=defaults.DEFAULT_MAX_ATTEMPTS,
        metadata=_about("attempts at one block before its request fails", minimum=1),
    )
    max_queued_requests: int = field(
        default=defaults.DEFAULT_MAX_QUEUED_REQUESTS,
        metadata=_about("requests waiting before the next is refused", minimum=1),
    )
    heartbeat_timeout_s: float = field(
        default=defaults.DEFAULT_HEARTBEAT_TIMEOUT_S,
        metadata=_about("longest silence of a worker before it counts as lost, in seconds", above=0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(ServiceConfig):
    """Settings of `services.prefill_worker` and `services.decode_worker`."""

    worker_id: str = field(default="", metadata=_about("stable name of the worker (empty: role and a random suffix)"))
    scheduler_address: str = field(metadata=_about("host:port of the scheduler", is_address=True))
    kv_store_address: str = field(
        default="", metadata=_about("host:port of the KV registry (empty: none)", is_address=True)
    )
    advertise_host: str = field(
        default="",
        metadata=_about(
            "host name or IP that peers reach this worker by (empty: the interface that routes to the scheduler)"
        ),
    )
    model_dir: Path = field(metadata=_about("folder of the checkpoint"))
    device: str = field(default="cpu", metadata=_about("torch device: cpu, cuda, cuda:0, ..."))
    dtype: str = field(
        default="auto",
        metadata=_about(
            "type of weights and K/V (auto: float32 on cpu, bfloat16 on cuda)",
            choices=("auto", "float32", "bfloat16", "float16"),
        ),
    )
    kv_pages: int = field(default=0, metadata=_about("KV pages in the pool (0: as many as fit)", minimum=0))
    page_size_tokens: int = field(
        default=defaults.DEFAULT_PAGE_SIZE_TOKENS, metadata=_about("canvas tokens per KV page", minimum=1)
    )
    token_budget: int = field(
        default=defaults.DEFAULT_TOKEN_BUDGET_TOKENS,
        metadata=_about("tau: query tokens one iteration may spend", minimum=1),
    )
    max_prefill_tokens_per_batch: int = field(
        default=defaults.DEFAULT_MAX_PREFILL_TOKENS_PER_BATCH,
        metadata=_about("most canvas tokens a prefill worker packs into one forward", minimum=1),
    )
    max_batch_size: int = field(
        default=defaults.DEFAULT_MAX_BATCH_SIZE, metadata=_about("most decodes in one iteration", minimum=1)
    )
    kv_transport: str = field(
        default="tcp", metadata=_about("backend that moves K/V between workers", choices=("tcp",))
    )
    kv_lease_s: float = field(
        default=defaults.DEFAULT_KV_LEASE_S,
        metadata=_about("how long K/V waits for a decode worker, in seconds", above=0),
    )
    torch_threads: int = field(default=0, metadata=_about("CPU threads per forward (0: torch's own choice)", minimum=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStoreConfig(ServiceConfig):
    """Settings of `services.kv_store`."""

    registry: str = field(
        default="memory",
        metadata=_about("where entries are kept: memory, or redis://host:port/db", is_registry=True),
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
            values[setting.name] = _parse(setting, hints[setting.name], text, source)
        elif setting.default is MISSING:
            raise ConfigError(f"{flag_of(setting.name)} is required (or set {env_of(setting.name)})")
    return cls(**values)


def flag_of(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def env_of(name: str) -> str:
    """The environment variable of a field."""
    return ENV_PREFIX + name.upper()


def to_argv(config: ServiceConfig) -> list[str]:
    """Flags that make `load_config` return an equal config: what a supervisor passes to the service it starts."""
    argv: list[str] = []
    for setting in fields(config):
        value = getattr(config, setting.name)
        if isinstance(value, bool):
            argv.append(flag_of(setting.name) if value else "--no-" + flag_of(setting.name)[2:])
        else:
            text = value.value if isinstance(value, enum.Enum) else "" if value is None else str(value)
            argv.append(f"{flag_of(setting.name)}={text}")
    return argv


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
        flag, help_text = flag_of(setting.name), _help(setting, hints[setting.name])
        # SUPPRESS: only what was really given is in the namespace, so that the environment can fill the rest.
        if hints[setting.name] is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, action=action, default=argparse.SUPPRESS, help=help_text)
        else:
            metavar = setting.name.upper()
            parser.add_argument(flag, metavar=metavar, default=argparse.SUPPRESS, help=help_text)
    return parser


def _help(setting: Field[Any], hint: Any) -> str:
    notes = []
    if allowed := _choices(setting, hint):
        notes.append("one of " + ", ".join(allowed))
    if setting.default is MISSING:
        notes.append("required")
    elif setting.default not in (None, ""):
        default = setting.default.value if isinstance(setting.default, enum.Enum) else setting.default
        notes.append(f"default {default}")
    notes.append(f"env {env_of(setting.name)}")
    return f"{setting.metadata['help']} [{'; '.join(notes)}]".replace("%", "%%")


def _text_of(setting: Field[Any], given: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The raw value and the name of the option it came from."""
    if setting.name in given:
        return str(given[setting.name]), flag_of(setting.name)
    return environ.get(env_of(setting.name)), env_of(setting.name)


def _choices(setting: Field[Any], hint: Any) -> tuple[str, ...]:
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return tuple(str(member.value) for member in hint)
    return tuple(setting.metadata["choices"] or ())


def _parse(setting: Field[Any], hint: Any, text: str, source: str) -> Any:
    allowed = _choices(setting, hint)
    if allowed and text not in allowed:
        raise ConfigError(f"{source}: must be one of {', '.join(allowed)}, not {text!r}")
    if isinstance(hint, types.UnionType):  # Path | None
        return Path(text) if text else None
    if hint in (int, float):
        return _number(setting, hint, text, source)
    if hint is bool:
        return _boolean(text, source)
    if setting.metadata["is_address"] and text:
        _check_address(text, source)
    if setting.metadata["is_registry"]:
        _check_registry(text, source)
    if hint is Path and not text:
        raise ConfigError(f"{source}: must be a path, not empty")
    return hint(text)


def _number(setting: Field[Any], hint: type[int] | type[float], text: str, source: str) -> float:
    kind = "a whole number" if hint is int else "a number"
    try:
        value = hint(text)
    except ValueError:
        raise ConfigError(f"{source}: must be {kind}, not {text!r}") from None
    minimum, maximum, above = (setting.metadata[key] for key in ("minimum", "maximum", "above"))
    if not math.isfinite(value):
        raise ConfigError(f"{source}: must be a finite number, not {text!r}")
    if minimum is not None and value < minimum:
        raise ConfigError(f"{source}: must be {minimum} or more, not {text}")
    if maximum is not None and value > maximum:
        raise ConfigError(f"{source}: must be {maximum} or less, not {text}")
    if above is not None and value <= above:
        raise ConfigError(f"{source}: must be above {above}, not {text}")
    return value


def _boolean(text: str, source: str) -> bool:
    lowered = text.lower()
    if lowered not in _TRUE + _FALSE:
        raise ConfigError(f"{source}: must be one of {', '.join(_TRUE + _FALSE)}, not {text!r}")
    return lowered in _TRUE


def _check_address(text: str, source: str) -> None:
    if not _is_address(text):
        raise ConfigError(f"{source}: must be host:port, not {text!r}")


def _is_address(text: str) -> bool:
    host, separator, port = text.rpartition(":")
    return bool(separator and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536)


def _check_registry(text: str, source: str) -> None:
    # The value is not repeated: a URL that somebody put a password into belongs in no log.
    found = _REDIS_URL.fullmatch(text)
    if text != "memory" and not (found and _is_address(found["address"])):
        raise ConfigError(f"{source}: must be memory or redis://host:port/db (db: a number, 0 if left out)")

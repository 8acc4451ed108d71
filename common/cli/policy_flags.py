"""Flags of `sangam up` that are handed on to a service as they are: scheduling policy, the audit."""

from __future__ import annotations

import argparse
import typing
from dataclasses import fields

from common.config import GatewayConfig, SchedulerServiceConfig, ServiceConfig, WorkerConfig
from common.config_flags import argv_of, flag_of, help_of
from common.config_values import AUTO, TokensOrAuto, parse_value

SCHEDULER_SETTINGS = (
    *("overflow", "prefill_policy", "decode_policy", "colocated_policy", "topology_alpha", "length_slack"),
    *("kv_overlap", "sticky_workers", "queue_order", "dispatch", "dispatch_ahead", "max_gen_len"),
    *("tenant_weights", "tenant_quantum", "max_queue_wait_s"),
)
GATEWAY_SETTINGS = ("audit_rate",)
WORKER_SETTINGS = ("target_decode_gap_s", "max_prefill_tokens_per_batch", "max_batch_size")


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags, with the services' own help and defaults."""
    policy = parser.add_argument_group("scheduling policy (docs/scheduling.md)")
    audit = parser.add_argument_group("audit (docs/metrics.md)")
    for group, cls, names in (
        (policy, SchedulerServiceConfig, SCHEDULER_SETTINGS),
        (policy, WorkerConfig, WORKER_SETTINGS),
        (audit, GatewayConfig, GATEWAY_SETTINGS),
    ):
        hints = typing.get_type_hints(cls)
        for setting in fields(cls):
            if setting.name not in names:
                continue
            flag, text = flag_of(setting.name), help_of(setting, hints[setting.name])
            if hints[setting.name] is bool:
                group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
            else:
                group.add_argument(flag, metavar=setting.name.upper(), help=text)


def scheduler_options(args: argparse.Namespace) -> tuple[str, ...]:
    """What was given, as flags of the scheduler. Raises ConfigError naming the flag."""
    return _options(SchedulerServiceConfig, SCHEDULER_SETTINGS, args)


def gateway_options(args: argparse.Namespace) -> tuple[str, ...]:
    """What was given, as flags of the gateway. Raises ConfigError naming the flag."""
    return _options(GatewayConfig, GATEWAY_SETTINGS, args)


def worker_options(args: argparse.Namespace) -> tuple[str, ...]:
    """What was given, as flags of every worker. Raises ConfigError naming the flag."""
    return _options(WorkerConfig, WORKER_SETTINGS, args)


def tokens_or_auto(text: str) -> TokensOrAuto:
    """For argparse: a whole number, or auto."""
    try:
        return AUTO if text == AUTO else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number or auto, not {text!r}") from None


def _options(cls: type[ServiceConfig], names: tuple[str, ...], args: argparse.Namespace) -> tuple[str, ...]:
    hints = typing.get_type_hints(cls)
    settings = [setting for setting in fields(cls) if setting.name in names]
    given = {setting.name: getattr(args, setting.name, None) for setting in settings}
    for setting in settings:
        if isinstance(value := given[setting.name], str):
            parse_value(setting, hints[setting.name], value, flag_of(setting.name))
    return argv_of(cls, **{name: value for name, value in given.items() if value is not None})

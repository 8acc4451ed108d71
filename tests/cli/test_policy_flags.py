"""Policy flags of `sangam up`: what was given reaches the services, what is wrong is named before anything starts."""

from __future__ import annotations

import argparse

import pytest

from common.cli.policy_flags import (
    add_policy_arguments,
    gateway_options,
    scheduler_options,
    tokens_or_auto,
    worker_options,
)
from common.config import GatewayConfig, SchedulerServiceConfig, WorkerConfig, load_config
from common.core.options import Dispatch, QueueOrder
from common.errors import ConfigError


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_policy_arguments(parser)
    return parser.parse_args(argv)


def test_nothing_given_is_nothing_said():
    assert scheduler_options(parse()) == worker_options(parse()) == gateway_options(parse()) == ()


def test_what_is_given_arrives():
    args = parse(
        *("--no-overflow", "--no-kv-overlap", "--sticky-workers", "--dispatch", "late", "--dispatch-ahead", "3"),
        *("--queue-order", "fewest_remaining_blocks", "--decode-policy", "balanced_length", "--length-slack", "0.25"),
        *("--tenant-weights", "a=3,b=1", "--max-gen-len", "256", "--max-queue-wait-s", "1.5"),
        *("--max-prefill-tokens-per-batch", "512", "--max-batch-size", "16"),
    )
    scheduler = load_config(SchedulerServiceConfig, scheduler_options(args), "sangam scheduler", environ={})
    assert (scheduler.overflow, scheduler.kv_overlap, scheduler.sticky_workers) == (False, False, True)
    assert (scheduler.dispatch, scheduler.dispatch_ahead) == (Dispatch.LATE, 3)
    assert scheduler.queue_order is QueueOrder.FEWEST_REMAINING_BLOCKS
    assert (scheduler.decode_policy, scheduler.length_slack) == ("balanced_length", 0.25)
    assert (scheduler.tenant_weights, scheduler.max_gen_len, scheduler.max_queue_wait_s) == ("a=3,b=1", 256, 1.5)
    worker = load_config(
        WorkerConfig, [*worker_options(args), "--scheduler-address=h:1", "--model-dir=m"], "sangam worker", environ={}
    )
    assert (worker.max_prefill_tokens_per_batch, worker.max_batch_size) == (512, 16)


def test_the_audit_rate_reaches_the_gateway_and_a_wrong_one_is_named():
    needed = ["--scheduler-address=h:1", "--model-dir=m"]
    options = gateway_options(parse("--audit-rate", "0.25"))
    assert load_config(GatewayConfig, [*options, *needed], "sangam gateway", environ={}).audit_rate == 0.25
    for value, words in (
        ("1.5", "must be 1 or less"),
        ("-0.1", "must be 0 or more"),
        ("nan", "must be"),
        ("x", "must"),
    ):
        with pytest.raises(ConfigError) as refusal:
            gateway_options(parse(f"--audit-rate={value}"))
        assert str(refusal.value).startswith(f"--audit-rate: {words}")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--dispatch", "never"), "--dispatch: must be one of eager, late, not 'never'"),
        (("--prefill-policy", "best"), "--prefill-policy: must be one of least_outstanding_tokens"),
        (("--topology-alpha", "1.5"), "--topology-alpha: must be 1 or less"),
        (("--tenant-weights", "a=0"), "--tenant-weights: must be name=weight,... with weights 1 to 1000"),
        (("--tenant-weights", "a"), "--tenant-weights: must be name=weight"),
        (("--max-queue-wait-s", "0"), "--max-queue-wait-s: must be above 0"),
        (("--dispatch-ahead", "two"), "--dispatch-ahead: must be a whole number"),
    ],
)
def test_a_wrong_value_is_named(argv, words):
    with pytest.raises(ConfigError) as refusal:
        scheduler_options(parse(*argv))
    assert str(refusal.value).startswith(words)


def test_tokens_may_be_left_to_the_service():
    assert (tokens_or_auto("auto"), tokens_or_auto("512")) == ("auto", 512)
    with pytest.raises(argparse.ArgumentTypeError, match="whole number or auto, not 'many'"):
        tokens_or_auto("many")

"""The flags of a cluster's processes are such that each service reads from them what the cluster asks for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.cli.cluster_config import ClusterConfig
from common.cli.service_specs import ServiceSpecs
from common.config import GatewayConfig, KvStoreConfig, SchedulerServiceConfig, WorkerConfig, load_config
from common.core.ids import ServingMode

MODEL, STORIES = Path("/models/a model"), Path("/stories")


def cluster(**settings: object) -> ServiceSpecs:
    """Two prefill workers and a decode worker, unless `settings` say otherwise."""
    given: dict[str, object] = {
        "mode": ServingMode.DISAGGREGATED,
        "prefill_workers": 2,
        "decode_workers": 1,
        **settings,
    }
    config = ClusterConfig(model_dir=MODEL, run_dir=Path("/run"), **given)  # type: ignore[arg-type]  # by test
    return ServiceSpecs(config)


def test_workers_are_told_their_device_and_whom_they_belong_to() -> None:
    specs = cluster(device="cuda:0,cuda:1", kv_pages=9, token_budget_tokens="auto", torch_threads=3, story_dir=STORIES)
    workers = specs.workers(kv_store="h:1", schedulers="h:2,h:3")
    configs = [load_config(WorkerConfig, spec.arguments, spec.name, environ={}) for spec in workers]
    assert [spec.module for spec in workers] == [*["services.prefill_worker"] * 2, "services.decode_worker"]
    assert [config.worker_id for config in configs] == ["prefill-0", "prefill-1", "decode-0"]
    assert [config.device for config in configs] == ["cuda:0", "cuda:1", "cuda:0"]
    for config in configs:
        assert (config.kv_store_address, config.scheduler_address, config.model_dir) == ("h:1", "h:2,h:3", MODEL)
        assert (config.kv_pages, config.token_budget, config.torch_threads) == (9, "auto", 3)
        assert config.story_dir == STORIES


@pytest.mark.parametrize(("schedulers", "lease"), [(1, ""), (2, "redis://h:4/0")])
def test_schedulers_share_a_lease_when_there_are_several(schedulers: int, lease: str) -> None:
    specs = cluster(schedulers=schedulers, registry="redis://h:4/0", scheduler_options=("--dispatch=late",))
    found = specs.schedulers(kv_store="h:1", lease="redis://h:4/0")
    assert len(found) == schedulers
    for spec in found:
        config = load_config(SchedulerServiceConfig, spec.arguments, spec.name, environ={})
        assert (config.mode, config.dispatch.value) == (ServingMode.DISAGGREGATED, "late")
        assert (config.kv_store_address, config.leader_lease, config.story_dir) == ("h:1", lease, None)


def test_the_gateway_and_the_registry_get_theirs_and_the_options_of_one_service_win() -> None:
    specs = cluster(drain_s=2.5, log_level="error", options_of={"gateway": ("--log-level", "debug")})
    gateway = load_config(GatewayConfig, specs.gateway(schedulers="h:2").arguments, "gateway", environ={})
    assert (gateway.scheduler_address, gateway.drain_s, gateway.log_level) == ("h:2", 2.5, "debug")
    # The next life of a gateway listens beside this one, where the system has that.
    shares_port = specs.gateway(schedulers="h:2").shares_port
    assert gateway.share_port == shares_port == (sys.platform == "linux")
    registry = load_config(KvStoreConfig, specs.kv_store("redis://h:4/0").arguments, "kv_store", environ={})
    assert (registry.registry, registry.log_level) == ("redis://h:4/0", "error")

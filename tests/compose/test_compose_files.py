"""The compose files and the Dockerfile say what they should; no engine is needed (see `make compose-test` for that)."""

from __future__ import annotations

import itertools
import re
import runpy
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from common.config import (
    GatewayConfig,
    KvStoreConfig,
    SchedulerServiceConfig,
    ServiceConfig,
    WorkerConfig,
    load_config,
)
from common.config_flags import ENV_PREFIX, env_of
from common.core.defaults import DEFAULT_DRAIN_S
from common.redis_address import RedisAddress
from tests.compose.compose_file import COMPOSE_DIR, read_stack, variable_defaults

BASE, HOST, GPU = "docker-compose.yaml", "docker-compose.host.yaml", "docker-compose.gpu.yaml"
STANDBY = "docker-compose.standby.yaml"
STACKS = [(BASE,), (BASE, HOST), (BASE, GPU), (BASE, HOST, GPU), (BASE, STANDBY), (BASE, GPU, STANDBY)]
CONFIGS: dict[str, type[ServiceConfig]] = {
    "gateway": GatewayConfig,
    "scheduler": SchedulerServiceConfig,
    "kv_store": KvStoreConfig,
    "prefill_worker": WorkerConfig,
    "decode_worker": WorkerConfig,
}
SETTINGS = {env_of(setting.name) for config in CONFIGS.values() for setting in fields(config)}
# What the place in the stack decides, never the user.
PLACED = {
    *("SANGAM_HOST", "SANGAM_PORT", "SANGAM_READY_FILE", "SANGAM_WORKER_ID"),
    *("SANGAM_SCHEDULER_ADDRESS", "SANGAM_KV_STORE_ADDRESS"),
}
# Defaults that differ from the service's own, and why.
DELIBERATE = {
    "SANGAM_MODEL_DIR": "/opt/sangam/common/models/sangam-tiny",  # a service has none
    "SANGAM_REGISTRY": "redis://redis:6379/0",  # the stack brings a Redis
    "SANGAM_TORCH_THREADS": "1",  # torch counts the machine's cores, not the container's share
}


def config_of(service: str) -> type[ServiceConfig]:
    return CONFIGS[service.removesuffix("_on_host").removesuffix("_standby")]


def our_services(files: tuple[str, ...]) -> dict[str, Any]:
    return {name: service for name, service in read_stack(*files).items() if name != "redis"}


@pytest.mark.parametrize("files", STACKS)
def test_every_service_accepts_its_settings(files: tuple[str, ...]) -> None:
    for name, service in our_services(files).items():
        config = load_config(config_of(name), [], name, environ=service["environment"])
        settings = {env_of(setting.name) for setting in fields(config)}
        assert settings == _settings_in(service), f"{name}: add to (or drop from) its environment in {files}"


@pytest.mark.parametrize("files", STACKS)
def test_every_service_has_a_health_check_limits_and_a_restart_policy(files: tuple[str, ...]) -> None:
    for name, service in read_stack(*files).items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["restart"] == "unless-stopped", name
        assert service["mem_limit"] and service["cpus"] and service["pids_limit"], name
        assert service["logging"]["options"]["max-size"], name


@pytest.mark.parametrize("files", STACKS)
def test_containers_are_locked_down(files: tuple[str, ...]) -> None:
    for name, service in read_stack(*files).items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"] and "cap_add" not in service, name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert all(volume.endswith(":ro") for volume in service.get("volumes", [])), name


def test_only_the_gateway_is_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in read_stack(BASE).items() if "ports" in service}
    assert published == {"gateway": ["127.0.0.1:50051:50051"]}


def test_services_wait_for_the_health_of_what_they_need() -> None:
    needs = {name: set(service.get("depends_on", {})) for name, service in read_stack(BASE).items()}
    assert needs == {
        "redis": set(),
        "kv_store": {"redis"},
        "scheduler": {"kv_store"},
        "scheduler_standby": {"kv_store"},
        "prefill_worker": {"kv_store", "scheduler"},
        "decode_worker": {"kv_store", "scheduler"},
        "gateway": {"scheduler"},
    }
    for service in read_stack(BASE, HOST).values():
        assert all(need == {"condition": "service_healthy"} for need in service.get("depends_on", {}).values())


def test_addresses_in_the_plain_stack_lead_to_the_services_they_name() -> None:
    services = our_services((BASE,))
    for name, service in services.items():
        for setting, value in service["environment"].items():
            if setting in ("SANGAM_SCHEDULER_ADDRESS", "SANGAM_KV_STORE_ADDRESS"):
                host, _, port = value.partition(":")
                assert host == setting.removeprefix("SANGAM_").removesuffix("_ADDRESS").lower(), name
                assert services[host]["environment"]["SANGAM_PORT"] == port, name


def test_the_plain_stack_has_one_scheduler_that_needs_no_lease() -> None:
    services = read_stack(BASE)
    assert services["scheduler_standby"].pop("scale") == 0
    assert services["scheduler_standby"] == services["scheduler"], "and another would be its equal"
    assert services["scheduler"]["environment"]["SANGAM_LEADER_LEASE"] == ""
    assert read_stack(BASE, HOST)["scheduler_standby"]["scale"] == 0


@pytest.mark.parametrize("files", [(BASE, STANDBY), (BASE, GPU, STANDBY)])
def test_a_standby_is_known_to_all_and_agrees_with_the_other_by_a_lease_in_the_stacks_redis(
    files: tuple[str, ...],
) -> None:
    services = read_stack(*files)
    assert services["scheduler_standby"].pop("scale") == 1
    assert services["scheduler_standby"] == services["scheduler"]
    scheduler = services["scheduler"]["environment"]
    lease = RedisAddress.parse(scheduler["SANGAM_LEADER_LEASE"])
    command = services[lease.host]["command"]
    assert command[command.index("--port") + 1] == str(lease.port)
    for name in ("prefill_worker", "decode_worker", "gateway"):
        known = services[name]["environment"]["SANGAM_SCHEDULER_ADDRESS"].split(",")
        assert known == [f"{each}:{scheduler['SANGAM_PORT']}" for each in ("scheduler", "scheduler_standby")], name
    # Nothing else is another: what the override does not speak of is as it was.
    plain = read_stack(*(name for name in files if name != STANDBY))
    for service in (*services.values(), *plain.values()):
        service.pop("scale", None)
        for setting in ("SANGAM_LEADER_LEASE", "SANGAM_SCHEDULER_ADDRESS"):
            service.get("environment", {}).pop(setting, None)
    assert services == plain
    theirs = read_stack(*files, variables={"SANGAM_LEADER_LEASE": "redis://elsewhere:7000/1"})
    assert theirs["scheduler_standby"]["environment"]["SANGAM_LEADER_LEASE"] == "redis://elsewhere:7000/1"


def test_workers_can_be_scaled() -> None:
    for name in ("prefill_worker", "decode_worker"):
        for files in STACKS:
            worker = read_stack(*files)[name]
            assert "container_name" not in worker and "ports" not in worker and "hostname" not in worker
            assert worker["environment"]["SANGAM_PORT"] == "0" and worker["environment"]["SANGAM_WORKER_ID"] == ""
    assert read_stack(BASE)["decode_worker"]["scale"] == 2


def test_grace_periods_outlast_the_drain() -> None:
    # The constants live in modules that need torch or open ports; their source is enough.
    root = COMPOSE_DIR.parent
    drains_s = {
        "gateway": DEFAULT_DRAIN_S,
        "scheduler": _constant(root / "services/scheduler/service.py", "STOP_GRACE_S"),
        "kv_store": _constant(root / "services/kv_store/app.py", "_STOP_GRACE_S"),
        "decode_worker": DEFAULT_DRAIN_S,
        "prefill_worker": DEFAULT_DRAIN_S,
    }
    services = read_stack(BASE)
    for name, drain_s in drains_s.items():
        assert float(services[name]["stop_grace_period"].removesuffix("s")) > drain_s + 2.0, name


def test_the_host_stack_stays_on_loopback_at_distinct_ports() -> None:
    services = read_stack(BASE, HOST)
    assert services["gateway"]["scale"] == 0
    ports = []
    for name, service in services.items():
        if service.get("scale") != 0:
            assert service["network_mode"] == "host" and "ports" not in service, name
        if name.endswith("_worker") or name in ("kv_store", "scheduler", "gateway_on_host"):
            assert service["environment"]["SANGAM_HOST"] == "127.0.0.1", name
            ports.append(service["environment"]["SANGAM_PORT"])
    command = services["redis"]["command"]
    assert command[command.index("--bind") + 1] == "127.0.0.1"
    ports.append(command[command.index("--port") + 1])
    fixed = [port for port in ports if port != "0"]
    assert len(set(fixed)) == len(fixed) == 4


def test_the_gateway_on_the_host_differs_from_the_gateway_in_its_place_only() -> None:
    plain, on_host = read_stack(BASE)["gateway"], read_stack(BASE, HOST)["gateway_on_host"]
    assert plain.pop("ports") and on_host.pop("network_mode") == on_host["build"].pop("network") == "host"
    for setting in ("SANGAM_HOST", "SANGAM_PORT", "SANGAM_SCHEDULER_ADDRESS"):
        assert plain["environment"].pop(setting) and on_host["environment"].pop(setting)
    assert on_host == plain


def test_gpu_workers_reserve_devices_and_build_with_cuda() -> None:
    services = read_stack(BASE, GPU)
    for name in ("prefill_worker", "decode_worker"):
        worker = services[name]
        (reserved,) = worker["deploy"]["resources"]["reservations"]["devices"]
        assert reserved["driver"] == "nvidia" and reserved["capabilities"] == ["gpu"]
        assert worker["build"]["args"]["TORCH_VARIANT"] == "cuda" and worker["build"]["target"] == "worker"
        assert worker["image"] != read_stack(BASE)[name]["image"]
        assert worker["environment"]["SANGAM_DEVICE"] == "cuda"
        assert worker["environment"]["SANGAM_KV_TRANSPORT"] == "ucx"
        assert worker["ulimits"]["memlock"] == {"soft": -1, "hard": -1} and worker["shm_size"]
    mapped = read_stack(BASE, GPU, variables={"RDMA_DEVICE": "/dev/infiniband"})["decode_worker"]["devices"]
    assert mapped == ["/dev/infiniband"]


def test_a_model_folder_is_mounted_under_its_own_path() -> None:
    services = read_stack(BASE, variables={"SANGAM_MODEL_DIR": "/data/LLaDA-8B"})
    for name in ("gateway", "prefill_worker", "decode_worker"):
        assert services[name]["volumes"] == ["/data/LLaDA-8B:/data/LLaDA-8B:ro"]
        assert services[name]["environment"]["SANGAM_MODEL_DIR"] == "/data/LLaDA-8B"
    assert read_stack(BASE)["gateway"]["volumes"] == ["/dev/null:/models/none:ro"]


def test_every_setting_exists_in_the_config_module_and_the_other_way_round() -> None:
    in_files = {name for files in STACKS for each in our_services(files).values() for name in _settings_in(each)}
    assert in_files == SETTINGS, "a new setting belongs into docker-compose.yaml and .env.example, with its default"
    named = set(itertools.chain.from_iterable(re.findall(r"SANGAM_[A-Z_]+", text) for text in _texts()))
    assert named - {"SANGAM_"} == SETTINGS


def test_the_example_describes_every_variable_with_its_default() -> None:
    text = (COMPOSE_DIR / ".env.example").read_text(encoding="utf-8")
    assert all(line.startswith("#") for line in text.splitlines() if line), "an example changes nothing when copied"
    listed = dict(re.findall(r"^# ([A-Z_]+)=(.*)$", text, flags=re.MULTILINE))
    placed = set(re.findall(r"SANGAM_[A-Z_]+", text)) - set(listed)
    assert placed == PLACED
    read = variable_defaults(BASE, HOST)
    read |= {name: values for name, values in variable_defaults(GPU, STANDBY).items() if name not in read}
    assert set(listed) - {"COMPOSE_PROJECT_NAME"} == set(read)
    for name, default in listed.items():
        if name not in ("COMPOSE_PROJECT_NAME", "SANGAM_MODEL_DIR"):
            assert read[name] == {default}, name


def test_defaults_are_the_services_own() -> None:
    for name, service in our_services((BASE,)).items():
        environment = service["environment"]
        in_stack = load_config(config_of(name), [], name, environ=environment)
        for setting in fields(in_stack):
            variable = env_of(setting.name)
            if variable in DELIBERATE:
                assert environment[variable] == DELIBERATE[variable]
            elif variable not in PLACED:
                assert setting.default is not MISSING and getattr(in_stack, setting.name) == setting.default, variable


def test_the_ready_file_is_in_the_only_writable_folder() -> None:
    for service in our_services((BASE, HOST)).values():
        assert service["tmpfs"] == ["/tmp:size=64m"]
        assert service["environment"]["SANGAM_READY_FILE"].startswith("/tmp/")


def test_the_dockerfile_has_the_targets_that_the_stack_builds() -> None:
    text = (COMPOSE_DIR / "Dockerfile").read_text(encoding="utf-8")
    stages = re.findall(r"^FROM \S+ AS (\S+)$", text, flags=re.MULTILINE)
    built = {service["build"]["target"] for service in our_services((BASE, HOST)).values()}
    assert built == {"control", "worker"} <= set(stages)
    final = {name: text.split(f" AS {name}\n")[1].split("\nFROM ")[0] for name in ("runtime", "control", "worker")}
    assert "USER 10001:10001" in final["runtime"] and "HEALTHCHECK" in final["runtime"]
    for name in ("control", "worker"):
        assert "pip" not in final[name] and "org.opencontainers.image.revision" in final[name]
    for stage in text.split("\nFROM ")[1:]:
        if "COPY common" in stage:
            assert "pip" not in stage, "dependencies must be installed before the code is copied"


def test_requirements_are_those_of_the_extras() -> None:
    requirements = runpy.run_path(str(COMPOSE_DIR / "requirements.py"))["requirements"]
    control = _names(requirements(COMPOSE_DIR.parent / "pyproject.toml", ["telemetry", "gateway", "kv-store"]))
    worker = _names(requirements(COMPOSE_DIR.parent / "pyproject.toml", ["worker", "ucx"]))
    assert {"grpcio", "protobuf", "redis", "tokenizers"} <= control and "torch" not in control
    assert {"grpcio", "protobuf", "torch", "ucxx-cu12"} <= worker and "redis" not in worker


def _settings_in(service: dict[str, Any]) -> set[str]:
    return {name for name in service["environment"] if name.startswith(ENV_PREFIX)}


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_-]", line)[0] for line in requirements}


def _constant(path: Path, name: str) -> float:
    found = re.search(rf"^{name} = ([0-9.]+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert found, f"{path} has no {name}"
    return float(found[1])


def _texts() -> list[str]:
    names = (BASE, HOST, GPU, STANDBY, ".env.example", "Dockerfile", "bin/serve", "bin/sangam")
    return [(COMPOSE_DIR / name).read_text(encoding="utf-8") for name in names]

"""The processes of a cluster: which module, with which flags. Services are named by string."""

from __future__ import annotations

import itertools
import sys

from common.cli.cluster_config import ClusterConfig
from common.cli.supervisor import ProcessSpec
from common.core.ids import Role


class ServiceSpecs:
    """How to start each process of one cluster; what it needs to know of others' addresses is passed in."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._story = () if config.story_dir is None else ("--story-dir", str(config.story_dir))

    def redis(self) -> ProcessSpec:
        """A redis-server of the cluster's own, with nothing on disk: all that it holds are leases of seconds."""
        return ProcessSpec(name="redis", module="common.cli.redis_process", arguments=(), may_end=False)

    def kv_store(self, registry: str) -> ProcessSpec:
        """The registry."""
        return self._service("kv_store", "services.kv_store", ("--registry", registry, *self._story))

    def schedulers(self, *, kv_store: str, lease: str) -> list[ProcessSpec]:
        """The scheduler, or several that agree by a `lease` (the URL of a Redis) on which of them leads."""
        config = self._config
        flags = (
            *("--mode", config.mode.value),
            *("--overload-threshold", str(config.overload_threshold_tokens)),
            *("--kv-store-address", kv_store),
            *self._story,
            *config.scheduler_options,
        )
        if config.schedulers == 1:
            return [self._service("scheduler", "services.scheduler", flags)]
        names = [f"scheduler-{index}" for index in range(config.schedulers)]
        return [self._service(name, "services.scheduler", (*flags, "--leader-lease", lease)) for name in names]

    def workers(self, *, kv_store: str, schedulers: str) -> list[ProcessSpec]:
        """Prefill workers, then decode workers; devices go round."""
        config = self._config
        prefills = [(Role.PREFILL, index) for index in range(config.prefill_workers)]
        decodes = [(Role.DECODE, index) for index in range(config.decode_workers)]
        placed = zip([*prefills, *decodes], itertools.cycle(config.devices), strict=False)
        common = ("--kv-store-address", kv_store, "--scheduler-address", schedulers)
        return [self._worker(role, index, device, common) for (role, index), device in placed]

    def gateway(self, *, schedulers: str) -> ProcessSpec:
        """The gateway."""
        config = self._config
        own = ("--host", config.host, "--scheduler-address", schedulers, "--model-dir", str(config.model_dir))
        drain = ("--drain-s", str(config.drain_s))
        shares_port = sys.platform == "linux"
        sharing = ("--share-port",) if shares_port else ()
        flags = (*own, *drain, *sharing, *config.gateway_options)
        return self._service("gateway", "services.gateway", flags, port=config.grpc_port, shares_port=shares_port)

    def _worker(self, role: Role, index: int, device: str, common: tuple[str, ...]) -> ProcessSpec:
        config, name = self._config, f"{role.value}-{index}"
        arguments = {
            "--worker-id": name,
            "--model-dir": str(config.model_dir),
            "--device": device,
            "--dtype": config.dtype,
            "--kv-pages": str(config.kv_pages),
            "--token-budget": str(config.token_budget_tokens),
            "--torch-threads": str(config.threads_per_worker),
            "--kv-transport": config.kv_transport,
            "--drain-s": str(config.drain_s),
        }
        flags = [part for pair in arguments.items() for part in pair]
        flags += [*common, *self._story, *config.worker_options]
        return self._service(name, f"services.{role.value}_worker", tuple(flags), may_end=True)

    def _service(
        self,
        name: str,
        module: str,
        arguments: tuple[str, ...],
        *,
        port: int = 0,
        may_end: bool = False,
        shares_port: bool = False,
    ) -> ProcessSpec:
        arguments = (*arguments, "--log-level", self._config.log_level, *self._config.options_of.get(name, ()))
        return ProcessSpec(
            name=name, module=module, arguments=arguments, may_end=may_end, port=port, shares_port=shares_port
        )

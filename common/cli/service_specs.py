"""The processes of a cluster: which module, with which flags. Services are named by string."""

from __future__ import annotations

import itertools

from common.cli.cluster_config import ClusterConfig
from common.cli.supervisor import ProcessSpec
from common.config import GatewayConfig, KvStoreConfig, SchedulerServiceConfig, ServiceConfig, WorkerConfig
from common.config_flags import argv_of
from common.core.ids import Role
from common.rpc.shared_port import is_shareable


class ServiceSpecs:
    """How to start each process of one cluster; what it needs to know of others' addresses is passed in."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._story = {} if config.story_dir is None else {"story_dir": config.story_dir}

    def redis(self) -> ProcessSpec:
        """A redis-server of the cluster's own, with nothing on disk: all that it holds are leases of seconds."""
        return ProcessSpec(name="redis", module="common.cli.redis_process", arguments=(), may_end=False)

    def kv_store(self, registry: str) -> ProcessSpec:
        """The registry."""
        return self._service("kv_store", "services.kv_store", argv_of(KvStoreConfig, registry=registry, **self._story))

    def schedulers(self, *, kv_store: str, lease: str) -> list[ProcessSpec]:
        """The scheduler, or several that agree by a `lease` (the URL of a Redis) on which of them leads."""
        config = self._config
        flags = argv_of(
            SchedulerServiceConfig,
            mode=config.mode,
            overload_threshold=config.overload_threshold_tokens,
            kv_store_address=kv_store,
            **self._story,
        )
        flags += config.scheduler_options
        if config.schedulers == 1:
            return [self._service("scheduler", "services.scheduler", flags)]
        flags += argv_of(SchedulerServiceConfig, leader_lease=lease)
        names = [f"scheduler-{index}" for index in range(config.schedulers)]
        return [self._service(name, "services.scheduler", flags) for name in names]

    def workers(self, *, kv_store: str, schedulers: str) -> list[ProcessSpec]:
        """Prefill workers, then decode workers; devices go round."""
        config = self._config
        prefills = [(Role.PREFILL, index) for index in range(config.prefill_workers)]
        decodes = [(Role.DECODE, index) for index in range(config.decode_workers)]
        placed = zip([*prefills, *decodes], itertools.cycle(config.devices), strict=False)
        return [
            self._worker(role, index, device=device, kv_store_address=kv_store, scheduler_address=schedulers)
            for (role, index), device in placed
        ]

    def gateway(self, *, schedulers: str) -> ProcessSpec:
        """The gateway."""
        config = self._config
        shares_port = is_shareable()
        flags = argv_of(
            GatewayConfig,
            host=config.host,
            scheduler_address=schedulers,
            model_dir=config.model_dir,
            drain_s=config.drain_s,
            share_port=shares_port,
        )
        flags += config.gateway_options
        return self._service("gateway", "services.gateway", flags, port=config.grpc_port, shares_port=shares_port)

    def _worker(self, role: Role, index: int, **places: str) -> ProcessSpec:
        config, name = self._config, f"{role.value}-{index}"
        flags = argv_of(
            WorkerConfig,
            worker_id=name,
            model_dir=config.model_dir,
            dtype=config.dtype,
            kv_pages=config.kv_pages,
            token_budget=config.token_budget_tokens,
            torch_threads=config.threads_per_worker,
            kv_transport=config.kv_transport,
            drain_s=config.drain_s,
            **places,
            **self._story,
        )
        return self._service(name, f"services.{role.value}_worker", flags + config.worker_options, may_end=True)

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
        log_level = argv_of(ServiceConfig, log_level=self._config.log_level)
        arguments = (*arguments, *log_level, *self._config.options_of.get(name, ()))
        return ProcessSpec(
            name=name, module=module, arguments=arguments, may_end=may_end, port=port, shares_port=shares_port
        )

"""The cores whose stories can be written and replayed, by the name that a story's first line gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from common.core.events import SchedulerEvent
from common.core.registry import RegistryCore
from common.core.registry_calls import RegistryCall, answer
from common.core.scheduler import SchedulerCore
from common.core.scheduler_config import SchedulerConfig
from common.core.worker import WorkerCore
from common.core.worker_config import WorkerCoreConfig
from common.core.worker_events import WorkerEvent

Handle = Callable[[Any, float], Sequence[Any]]
"""A core's one mutator: an event and the time (monotonic seconds) in, what it decided out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreKind:
    """What a story of this kind holds, and how a fresh core of it is made. `config` is a type hint, and so is `event`.

    `make` builds the core from its config and returns its mutator.
    """

    config: Any
    event: Any
    make: Callable[[Any], Handle]


def _registry(config: None) -> Handle:
    core = RegistryCore()
    return lambda call, now: answer(core, call, now)


SCHEDULER, WORKER, REGISTRY = "scheduler", "worker", "registry"

CORES: Mapping[str, CoreKind] = MappingProxyType(
    {
        SCHEDULER: CoreKind(
            config=SchedulerConfig, event=SchedulerEvent, make=lambda config: SchedulerCore(config).handle
        ),
        WORKER: CoreKind(config=WorkerCoreConfig, event=WorkerEvent, make=lambda config: WorkerCore(config).handle),
        REGISTRY: CoreKind(config=type(None), event=RegistryCall, make=_registry),
    }
)

"""One compose project of the proof: its commands, its containers, and what the engine knows of them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compose.docker_engine import DockerEngine, ProofFailed, output_of

COMPOSE_DIR = Path(__file__).parents[2] / "compose"
BASE_FILE = "docker-compose.yaml"
HOST_FILE = "docker-compose.host.yaml"
GPU_FILE = "docker-compose.gpu.yaml"
STANDBY_FILE = "docker-compose.standby.yaml"
PORT_VARIABLES = ("GATEWAY_PORT", "SCHEDULER_PORT", "KV_STORE_PORT", "REDIS_PORT")
COMMAND_TIMEOUT_S = 90.0
POLL_S = 0.25
_PORTS = range(20_000, 30_000)


def stack_environment(*, image_tag: str) -> dict[str, str]:
    """Variables of a stack on free loopback ports whose limits this machine can give."""
    cpus = float(os.cpu_count() or 1)
    limits = {"IMAGE_TAG": image_tag, "WORKER_CPUS": str(min(2.0, cpus))}
    return limits | dict(zip(PORT_VARIABLES, map(str, _free_ports(len(PORT_VARIABLES))), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A compose project; `variables` are what a user would set in the shell."""

    engine: DockerEngine
    project: str
    files: tuple[str, ...]
    variables: Mapping[str, str]

    @property
    def gateway_address(self) -> str:
        """host:port of the gateway on the host's network."""
        return f"127.0.0.1:{self.variables['GATEWAY_PORT']}"

    @property
    def scheduler_address(self) -> str:
        """host:port of the scheduler on the host's network."""
        return f"127.0.0.1:{self.variables['SCHEDULER_PORT']}"

    async def compose(self, *words: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run a compose command on this project; its standard output. Raises ProofFailed."""
        files = [word for name in self.files for word in ("-f", str(COMPOSE_DIR / name))]
        # The example's lines are all comments: a developer's own .env must not take part.
        env_file = ("--env-file", str(COMPOSE_DIR / ".env.example"))
        command = [*self.engine.compose, "-p", self.project, *env_file, *files, *words]
        environment = {**self.engine.environment, **self.variables}
        return await output_of(command, environment=environment, timeout_s=timeout_s)

    async def docker(self, *words: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run a docker command; its standard output without the last line break. Raises ProofFailed."""
        told = await output_of(["docker", *words], environment=self.engine.environment, timeout_s=timeout_s)
        return told.rstrip("\n")

    async def containers(self, service: str | None = None) -> list[str]:
        """Ids of the project's containers, running or not, of one service or of all."""
        return await self._labelled("ps", "--all", "--no-trunc", *([_service_filter(service)] if service else []))

    async def inspect(self, container: str) -> dict[str, Any]:
        """What the engine knows of a container."""
        facts: list[dict[str, Any]] = json.loads(await self.docker("inspect", container))
        return facts[0]

    async def healths(self) -> dict[str, str]:
        """Health by container name, of all containers of the project."""
        facts = [await self.inspect(container) for container in await self.containers()]
        return {str(each["Name"]).lstrip("/"): health_of(each) for each in facts}

    async def wait_healthy(self, *, timeout_s: float) -> None:
        """Wait until every container is healthy. Raises ProofFailed naming those that are not."""
        healths: dict[str, str] = {}

        async def all_healthy() -> bool:
            healths.clear()
            healths.update(await self.healths())
            return set(healths.values()) == {"healthy"}

        try:
            await eventually(all_healthy, timeout_s=timeout_s)
        except TimeoutError:
            raise ProofFailed(f"not healthy within {timeout_s:.0f} s: {healths}") from None

    async def ready_file(self, container: str) -> dict[str, Any]:
        """What the service in a container wrote about itself: address, pid, worker_id."""
        facts: dict[str, Any] = json.loads(await self.docker("exec", container, "cat", "/tmp/ready.json"))
        return facts

    async def container_of(self, worker_id: str, service: str) -> str:
        """The container that the worker lives in. Raises ProofFailed when there is none."""
        for container in await self.containers(service):
            if (await self.ready_file(container))["worker_id"] == worker_id:
                return container
        raise ProofFailed(f"{worker_id} is in no container of {service}")

    async def logs(self, container: str) -> list[str]:
        """Lines that a container wrote to standard error and output."""
        command = ["sh", "-c", 'exec docker logs "$1" 2>&1', "sh", container]
        return (await output_of(command, environment=self.engine.environment, timeout_s=20.0)).splitlines()

    async def down(self) -> None:
        """Stop and remove the project."""
        await self.compose("down", "--volumes", "--remove-orphans", timeout_s=120.0)

    async def leftovers(self) -> list[str]:
        """Containers, networks and volumes that still bear the project's name."""
        networks = await self._labelled("network", "ls")
        return [*await self.containers(), *networks, *await self._labelled("volume", "ls")]

    async def _labelled(self, *words: str) -> list[str]:
        label = f"--filter=label=com.docker.compose.project={self.project}"
        return (await self.docker(*words, "--quiet", label)).split()


def health_of(facts: Mapping[str, Any]) -> str:
    """starting, healthy or unhealthy; for a container that does not run, its status."""
    state = facts["State"]
    return str(state["Health"]["Status"]) if state["Status"] == "running" else str(state["Status"])


async def eventually(holds: Callable[[], Awaitable[bool]], *, timeout_s: float) -> None:
    """Wait until an asynchronous condition holds. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not await holds():  # noqa: ASYNC110  # another process changes it, no event can tell
            await asyncio.sleep(POLL_S)


def _service_filter(service: str) -> str:
    return f"--filter=label=com.docker.compose.service={service}"


def _free_ports(count: int) -> list[int]:
    """Ports below those that the kernel hands out, so that nobody is given one before the stack takes it."""
    free: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            free.append(port)
        if len(free) == count:
            return free
    raise ProofFailed(f"no {count} free ports in {_PORTS}")

"""The engine that `make compose-test` uses: the one that is there, else one that a starter script makes."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from common.errors import SangamError

STARTER_VARIABLE = "DOCKER_ENGINE_STARTER"
DEFAULT_STARTER = Path(__file__).parents[3] / "shared" / "tools" / "docker-engine.sh"
START_TIMEOUT_S = 420.0
_TAIL_LINES = 15


class ProofFailed(SangamError):
    """Something is not as it must be, or what the proof needs is not there; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerEngine:
    """A running engine: the environment for its clients, and the compose command, ("docker", "compose") or the old.

    `ours`: it was started for this run and is stopped after it.
    """

    environment: Mapping[str, str]
    compose: tuple[str, ...]
    ours: bool


@asynccontextmanager
async def docker_engine() -> AsyncIterator[DockerEngine]:
    """The engine that `docker info` finds, else a started one, which is stopped again.

    Raises ProofFailed saying what is needed.
    """
    environment = dict(os.environ)
    starter = None
    if not await _answers(environment):
        starter = _starter()
        print(f"   no engine answers: starting one with {starter} (a few minutes the first time)", flush=True)
        told = await output_of(["bash", str(starter), "start"], environment=environment, timeout_s=START_TIMEOUT_S)
        environment |= dict(re.findall(r"^export (DOCKER_HOST)=(\S+)$", told, flags=re.MULTILINE))
    try:
        command = await _compose_command(environment)
        yield DockerEngine(environment=environment, compose=command, ours=starter is not None)
    finally:
        if starter is not None:
            await output_of(["bash", str(starter), "stop"], environment=environment, timeout_s=60.0)


async def output_of(command: Sequence[str], *, environment: Mapping[str, str], timeout_s: float) -> str:
    """Standard output of a command. Raises ProofFailed, with the last lines it wrote, when it fails or is too slow."""
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate()
    except TimeoutError:
        raise ProofFailed(f"`{' '.join(command)}` took more than {timeout_s:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        tail = "\n".join((output + errors).decode(errors="replace").splitlines()[-_TAIL_LINES:])
        raise ProofFailed(f"`{' '.join(command)}` ended with code {process.returncode}:\n{tail}")
    return output.decode(errors="replace")


def _starter() -> Path:
    starter = Path(os.environ.get(STARTER_VARIABLE) or DEFAULT_STARTER)
    if not starter.is_file():
        raise ProofFailed(
            "no Docker engine answers `docker info`: start one, or set DOCKER_HOST to one that runs, "
            f"or name a script that starts one (start|stop) in {STARTER_VARIABLE}"
        )
    return starter.resolve()


async def _answers(environment: Mapping[str, str]) -> bool:
    return shutil.which("docker") is not None and await _succeeds(["docker", "info"], environment)


async def _compose_command(environment: Mapping[str, str]) -> tuple[str, ...]:
    for command in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(command[0]) and await _succeeds([*command, "version"], environment):
            return command
    raise ProofFailed("neither `docker compose` nor `docker-compose` is installed")


async def _succeeds(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    try:
        await output_of(command, environment=environment, timeout_s=20.0)
    except ProofFailed:
        return False
    return True

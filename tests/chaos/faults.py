"""What is done to a cluster under load, at random from a seed: kills, pauses, cuts."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import random
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from common.cli.cluster import Cluster
from common.cli.status import fetch_state
from common.errors import Reason, WireError
from tests.chaos.wire import Wire

MOST_BETWEEN_LIVES = 2
"""So many processes down at once are waited for: on a machine that starts them slowly nothing else would ever run."""

ASK_S = 0.5
"""Longest wait for a scheduler's word on whether it leads."""


class FaultKind(enum.Enum):
    """What happened, the gravest first: a wait that several faults explain counts for the gravest."""

    LAST_WORKER = "kill -9 of the last decode worker"
    SCHEDULER_PAUSE = "pause of the scheduler"
    PAUSE = "pause of a worker"
    CUT = "cut of a worker's network"
    GATEWAY = "kill -9 of the gateway"
    REDIS = "kill -9 of Redis"
    SCHEDULER = "kill -9 of the scheduler"
    WORKER = "kill -9 of a worker"
    KV_STORE = "kill -9 of the registry"
    STANDBY = "kill or pause of a standby scheduler"


_KILLS = {
    "gateway": FaultKind.GATEWAY,
    "scheduler": FaultKind.SCHEDULER,
    "prefill": FaultKind.WORKER,
    "decode": FaultKind.WORKER,
    "kv_store": FaultKind.KV_STORE,
    "redis": FaultKind.REDIS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One of them: who, from when until when (monotonic seconds; a kill is over at once)."""

    kind: FaultKind
    target: str
    begun_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mischief:
    """How much trouble: mean time between two kills, between two pauses or cuts, and their length, in seconds.

    `kinds` are the services that are killed, in equal shares: keys of `_KILLS`.
    After `most_faults` there is peace (None: never).
    """

    kinds: tuple[str, ...]
    kill_every_s: float = 2.0
    disturb_every_s: float = 6.0
    disturbed_s: tuple[float, float] = (0.3, 5.0)
    most_faults: int | None = None


class Saboteur:
    """Does it, until cancelled; then every process goes on and every wire is whole."""

    def __init__(
        self,
        cluster: Cluster,
        wires: Mapping[str, tuple[Wire, ...]],
        mischief: Mischief,
        *,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        """`wires`: those of each worker that has some."""
        self.faults: list[Fault] = []
        self._cluster = cluster
        self._wires = wires
        self._mischief = mischief
        self._choose = random.Random(seed)
        self._say = say
        self._disturbed: set[str] = set()

    async def run(self) -> None:
        """Kill, pause and cut, up to the limit, then rest for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self._kill, every_s=self._mischief.kill_every_s))
            tasks.create_task(self._repeat(self._disturb, every_s=self._mischief.disturb_every_s))

    async def _repeat(self, action: Callable[[], Coroutine[Any, Any, None]], *, every_s: float) -> None:
        while self._mischief.most_faults is None or len(self.faults) < self._mischief.most_faults:
            while len(self._between_lives()) >= MOST_BETWEEN_LIVES:  # noqa: ASYNC110  # the supervisor tells nobody
                await asyncio.sleep(0.05)
            await asyncio.sleep(self._choose.uniform(0.75 * every_s, 1.25 * every_s))
            await action()

    def _serving(self) -> dict[str, int]:
        """Process ids, by name, of the services that serve; one that does not serve yet has nothing to lose."""
        return {name: pid for name, pid in self._cluster.processes.items() if name in self._cluster.addresses}

    def _between_lives(self) -> set[str]:
        return self._cluster.restarts.keys() - self._serving().keys()

    async def _kill(self) -> None:
        serving = self._serving()
        service = self._choose.choice(self._mischief.kinds)
        names = sorted(name for name in serving if name.partition("-")[0] == service)
        if names:
            name = self._choose.choice(names)
            kind = await self._kill_kind(name)
            if self._serving().get(name) == serving[name]:
                self._note(kind, name, 0.0)
                os.kill(serving[name], signal.SIGKILL)

    async def _kill_kind(self, name: str) -> FaultKind:
        others = [each for each in self._serving() if each.startswith("decode-") and each != name]
        if name.startswith("decode-") and all(each in self._disturbed for each in others):
            return FaultKind.LAST_WORKER
        if name.startswith("scheduler") and not await self._leads(name):
            return FaultKind.STANDBY
        return _KILLS[name.partition("-")[0]]

    async def _leads(self, scheduler: str) -> bool:
        """Whether it does not say that another leads; one that says nothing may well lead."""
        try:
            async with asyncio.timeout(ASK_S):
                await fetch_state(self._cluster.addresses[scheduler])
        except (TimeoutError, WireError) as error:
            return not (isinstance(error, WireError) and error.reason is Reason.NOT_LEADER)
        return True

    async def _disturb(self) -> None:
        last_s = self._choose.uniform(*self._mischief.disturbed_s)
        if self._wires and self._choose.random() < 0.5:
            await self._cut(self._choose.choice(sorted(self._wires)), last_s)
        else:
            await self._pause(last_s)

    async def _pause(self, last_s: float) -> None:
        serving = self._serving()
        names = sorted(name for name in serving if name.startswith(("prefill-", "decode-", "scheduler")))
        if names:
            name = self._choose.choice(names)
            kind = FaultKind.PAUSE
            if name.startswith("scheduler"):
                kind = FaultKind.SCHEDULER_PAUSE if await self._leads(name) else FaultKind.STANDBY
            with self._disturbing(kind, name, last_s), _stopped(serving[name]):
                await asyncio.sleep(last_s)

    async def _cut(self, name: str, last_s: float) -> None:
        with self._disturbing(FaultKind.CUT, name, last_s):
            try:
                for wire in self._wires[name]:
                    wire.cut()
                await asyncio.sleep(last_s)
            finally:
                for wire in self._wires[name]:
                    wire.mend()

    @contextlib.contextmanager
    def _disturbing(self, kind: FaultKind, name: str, last_s: float) -> Iterator[None]:
        self._note(kind, name, last_s)
        self._disturbed.add(name)
        try:
            yield
        finally:
            self._disturbed.discard(name)

    def _note(self, kind: FaultKind, target: str, last_s: float) -> None:
        now = asyncio.get_running_loop().time()
        self.faults.append(Fault(kind=kind, target=target, begun_s=now, ended_s=now + last_s))
        self._say(f"{kind.value}: {target}{f' for {last_s:.1f} s' if last_s else ''}")


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """The process does not run meanwhile; it may be killed all the same."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

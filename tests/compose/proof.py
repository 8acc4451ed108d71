"""`make compose-test`: build the images, run the stack on a real engine, and break it on purpose.

Everything runs on the host's network, on loopback. Exit code 0 only when every step holds; whatever happens, the
containers, networks, volumes and images of the proof are removed. KEEP_IMAGES=1 keeps the images for the next run.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.cli.generation_output import GenerationOutput
from common.cli.status import facts, fetch_state, unfree_pages
from common.core.defaults import DEFAULT_KV_LEASE_S
from common.errors import SangamError
from tests.compose.docker_engine import DockerEngine, ProofFailed, docker_engine, output_of
from tests.compose.image_checks import check_images
from tests.compose.load import check_equal, repeated_attempts, run_at_once, run_quietly
from tests.compose.stack import (
    BASE_FILE,
    GPU_FILE,
    HOST_FILE,
    STANDBY_FILE,
    Stack,
    eventually,
    health_of,
    stack_environment,
)

TOTAL_TIMEOUT_S = 13 * 60.0
"""For everything but the clean-up."""
BUILD_TIMEOUT_S = 540.0
HEALTHY_TIMEOUT_S = 60.0
BUSY_DECODES = 3
PROGRESS_INTERVAL_S = 20.0
PROJECT = "sangam-proof"
IMAGE_TAG = "proof"

Step = Callable[[], Awaitable[str]]


@dataclass(slots=True, kw_only=True)
class Proof:
    """The steps, in order; each returns the figures it saw and raises ProofFailed when something does not hold."""

    stack: Stack
    scratch: Path
    quiet: Sequence[GenerationOutput] = ()

    def steps(self) -> list[tuple[str, Step]]:
        """What is proved, in the order it is proved."""
        return [
            ("compose files are read with every override", self.read_files),
            ("both images build", self.build),
            ("the images hold what they should", self.check_contents),
            ("the plain stack can be created, and one with a standby", self.create_plain),
            ("the stack is healthy within 60 s", self.start),
            ("a request over gRPC", self.one_request),
            ("fifty requests, two at a time", self.run_quiet),
            ("a third decode worker takes work", self.scale_up),
            ("four decode and two prefill workers", self.scale_further),
            ("kill -9 inside a decode worker under 50 requests", self.kill_worker),
            ("SIGTERM to a decode worker under 50 requests", self.drain_worker),
            ("kill -9 inside the scheduler under 50 requests", self.kill_scheduler),
            ("kv_store and redis restart under 50 requests", self.restart_registry),
            ("a wrong model folder", self.wrong_model),
            ("down leaves nothing", self.take_down),
        ]

    async def read_files(self) -> str:
        """`config` accepts the base file alone and with each override."""
        alone = [(BASE_FILE,), (BASE_FILE, HOST_FILE), (BASE_FILE, GPU_FILE), (BASE_FILE, STANDBY_FILE)]
        combinations = [*alone, (BASE_FILE, HOST_FILE, GPU_FILE), (BASE_FILE, GPU_FILE, STANDBY_FILE)]
        for files in combinations:
            await replace(self.stack, files=files).compose("config", "--quiet")
        return f"{len(combinations)} combinations by `{' '.join(self.stack.engine.compose)}`"

    async def build(self) -> str:
        """Build `control` and `worker`; the other services of each share its image."""
        await self.stack.compose("build", "gateway_on_host", "decode_worker", timeout_s=BUILD_TIMEOUT_S)
        return "control and worker"

    async def check_contents(self) -> str:
        """No torch in control, no build tools, no root, nothing writable but /tmp, sizes."""
        sizes = await check_images(self.stack)
        over = f"control {sizes.control_bytes / 1e6:.0f} MB, worker {sizes.worker_bytes / 1e6:.0f} MB over their base"
        return f"{over}; uid 10001, only /tmp writable, same model in both"

    async def create_plain(self) -> str:
        """The engine accepts the containers of the plain file; they are not started: they would leave loopback."""
        alone, with_standby = [await self._created(files) for files in ((BASE_FILE,), (BASE_FILE, STANDBY_FILE))]
        _check(with_standby == alone + 1, f"{alone} containers, {with_standby} with a standby scheduler")
        return f"{alone} and {with_standby} containers, one published port, on 127.0.0.1"

    async def _created(self, files: tuple[str, ...]) -> int:
        """Number of containers that the engine creates for these files; their one published port is the gateway's."""
        plain = replace(self.stack, project=f"{PROJECT}-plain", files=files)
        try:
            await plain.compose("up", "--no-start")
            created = await plain.containers()
            published = [(await plain.inspect(each))["HostConfig"]["PortBindings"] for each in created]
        finally:
            await plain.down()
        ports = [port for bindings in published for port in (bindings or {}).items()]
        wanted = [{"HostIp": "127.0.0.1", "HostPort": self.stack.variables["GATEWAY_PORT"]}]
        _check(ports == [("50051/tcp", wanted)], f"published: {ports}")
        return len(created)

    async def start(self) -> str:
        """`up`, then every container healthy in time."""
        begun = time.monotonic()
        await self.stack.compose("up", "-d")
        await self.stack.wait_healthy(timeout_s=HEALTHY_TIMEOUT_S - (time.monotonic() - begun))
        return f"{len(await self.stack.containers())} containers after {time.monotonic() - begun:.1f} s"

    async def one_request(self) -> str:
        """The command-line client against the published gateway."""
        command = [sys.executable, "-m", "common.cli", "generate", "--address", self.stack.gateway_address]
        options = ["--prompt", "Hello from outside", "--max-tokens", "32", "--ignore-eos", "--json"]
        told = await output_of([*command, *options], environment=os.environ, timeout_s=60.0)
        _check('"finish_reason"' in told, f"the client printed {told!r}")
        return f"{len(told)} bytes of JSON"

    async def run_quiet(self) -> str:
        """What the tokens must be, whatever happens later."""
        self.quiet = await run_quietly(self.stack.gateway_address)
        moved = sum(block.transfer_bytes for output in self.quiet for block in output.blocks)
        _check(moved > 0, "no K/V moved from the prefill worker to a decode worker")
        return f"{sum(len(each.token_ids) for each in self.quiet)} tokens, {moved / 1e6:.1f} MB of K/V moved"

    async def scale_up(self) -> str:
        """`--scale decode_worker=3` and nothing else; the newcomer must appear in answers."""
        before = await self._workers("decode")
        await self._scale(decode=3, prefill=1)
        (newcomer,) = await self._workers("decode") - before
        outputs = await run_at_once(self.stack.gateway_address)
        check_equal(outputs, self.quiet)
        blocks = sum(block.decode_worker_id == newcomer for output in outputs for block in output.blocks)
        _check(blocks > 0, f"{newcomer} got no work")
        return f"{newcomer} decoded {blocks} blocks, tokens equal the quiet run's"

    async def scale_further(self) -> str:
        """`--scale decode_worker=4 --scale prefill_worker=2`, and back again."""
        await self._scale(decode=4, prefill=2)
        outputs = await run_at_once(self.stack.gateway_address)
        check_equal(outputs, self.quiet)
        workers = {name for output in outputs for name in output.worker_ids}
        await self._scale(decode=3, prefill=1)
        return f"{len(workers)} workers took part, tokens equal, scaled back to 3 and 1"

    async def kill_worker(self) -> str:
        """The process of a busy decode worker is killed; its container comes back as a new life."""
        load = asyncio.create_task(run_at_once(self.stack.gateway_address))
        victim = await self._busy_decode_worker(load)
        container = await self.stack.container_of(victim, "decode_worker")
        await self._kill_inside(container)
        outputs = await load
        check_equal(outputs, self.quiet)
        repeated = repeated_attempts(outputs)
        _check(repeated > 0, "no block was tried again: the kill hit nothing")
        await self.stack.wait_healthy(timeout_s=HEALTHY_TIMEOUT_S)
        restarts = (await self.stack.inspect(container))["RestartCount"]
        _check(restarts == 1, f"the engine restarted the container {restarts} times")
        _check(victim not in await self._workers("decode"), f"{victim} is still listed")
        await self._all_pages_free()
        return f"50 of 50 finished, tokens equal, {repeated} blocks tried again, worker back, no page lost"

    async def drain_worker(self) -> str:
        """`docker stop` of a busy decode worker: it finishes what it has and ends with code 0."""
        load = asyncio.create_task(run_at_once(self.stack.gateway_address))
        victim = await self._busy_decode_worker(load)
        container = await self.stack.container_of(victim, "decode_worker")
        begun = time.monotonic()
        await self.stack.docker("stop", "--time", "30", container)
        stopped_s = time.monotonic() - begun
        outputs = await load
        check_equal(outputs, self.quiet)
        code = (await self.stack.inspect(container))["State"]["ExitCode"]
        _check(code == 0, f"the drained worker ended with code {code}")
        await self.stack.docker("start", container)
        await self.stack.wait_healthy(timeout_s=HEALTHY_TIMEOUT_S)
        repeated = repeated_attempts(outputs)
        return f"50 of 50 finished, tokens equal, {repeated} blocks tried again, drained in {stopped_s:.1f} s, code 0"

    async def kill_scheduler(self) -> str:
        """The one service that knows every request dies; gateways resume with what they hold."""
        load = asyncio.create_task(run_at_once(self.stack.gateway_address))
        await self._busy_decode_worker(load)
        (container,) = await self.stack.containers("scheduler")
        await self._kill_inside(container)
        outputs = await load
        check_equal(outputs, self.quiet)
        await self.stack.wait_healthy(timeout_s=HEALTHY_TIMEOUT_S)
        await self._all_pages_free()
        return "50 of 50 finished, tokens equal, no page lost"

    async def restart_registry(self) -> str:
        """Decoding does not need the registry: both of its halves go away and come back."""
        load = asyncio.create_task(run_at_once(self.stack.gateway_address))
        await self._busy_decode_worker(load)
        await self.stack.compose("restart", "kv_store", "redis")
        outputs = await load
        check_equal(outputs, self.quiet)
        await self.stack.wait_healthy(timeout_s=HEALTHY_TIMEOUT_S)
        await self._all_pages_free()
        return f"50 of 50 finished, tokens equal, {repeated_attempts(outputs)} blocks tried again"

    async def wrong_model(self) -> str:
        """SANGAM_MODEL_DIR names a folder without a model: one line, unhealthy, no loop."""
        folder = self.scratch / "no-model-here"
        variables = {**self.stack.variables, "SANGAM_MODEL_DIR": str(folder), "WORKER_START_PERIOD": "1s"}
        wrong = replace(self.stack, project=f"{PROJECT}-wrong", variables=variables)
        try:
            await wrong.compose("up", "-d", "--no-deps", "--scale", "decode_worker=1", "decode_worker")
            (container,) = await wrong.containers()

            async def judged() -> bool:
                return health_of(await wrong.inspect(container)) != "starting"

            await eventually(judged, timeout_s=HEALTHY_TIMEOUT_S)
            found = await wrong.inspect(container)
            errors = [line for line in await wrong.logs(container) if "error:" in line]
        finally:
            await wrong.down()
        _check(health_of(found) == "unhealthy", f"the worker is {health_of(found)}")
        _check(found["RestartCount"] == 0, "the engine restarted it over and over")
        _check(len(errors) == 1 and str(folder) in errors[0], f"it said {errors}")
        return f"unhealthy, not restarted, said: {errors[0]}"

    async def take_down(self) -> str:
        """`down` in the ordinary way, within the grace periods."""
        begun = time.monotonic()
        await self.stack.down()
        left = await self.stack.leftovers()
        _check(not left, f"left behind: {left}")
        return f"no container, network or volume after {time.monotonic() - begun:.1f} s"

    async def _kill_inside(self, container: str) -> None:
        pid = (await self.stack.ready_file(container))["pid"]
        await self.stack.docker("exec", container, "sh", "-c", f"kill -9 {pid}")

    async def _scale(self, *, decode: int, prefill: int) -> None:
        wanted = ["--scale", f"decode_worker={decode}", "--scale", f"prefill_worker={prefill}"]
        await self.stack.compose("up", "-d", "--no-recreate", *wanted)
        await self.stack.wait_healthy(timeout_s=HEALTHY_TIMEOUT_S)
        found = (len(await self._workers("decode")), len(await self._workers("prefill")))
        _check(found == (decode, prefill), f"(decode, prefill) workers registered: {found}")

    async def _workers(self, role: str) -> set[str]:
        return {worker["worker_id"] for worker in await self._worker_facts() if worker["role"] == role}

    async def _worker_facts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = facts(await fetch_state(self.stack.scheduler_address))["workers"]
        return found

    async def _busy_decode_worker(self, load: asyncio.Task[list[GenerationOutput]]) -> str:
        """The decode worker with the most to do, once it has something to lose."""
        while not load.done():
            decoding = [worker for worker in await self._worker_facts() if worker["role"] == "decode"]
            busiest = max(decoding, key=lambda worker: int(worker["active_decodes"]))
            if busiest["active_decodes"] >= BUSY_DECODES:
                return str(busiest["worker_id"])
            await asyncio.sleep(0.01)
        await load
        raise ProofFailed(f"the load was over before a decode worker had {BUSY_DECODES} decodes")

    async def _all_pages_free(self) -> None:
        """No page is lost; K/V that nobody came for may take its lease to go."""
        held: dict[str, int] = {}

        async def all_free() -> bool:
            workers = (await fetch_state(self.stack.scheduler_address)).workers
            held.clear()
            held.update({worker.life.worker_id: pages for worker in workers if (pages := unfree_pages(worker))})
            return not held

        try:
            await eventually(all_free, timeout_s=DEFAULT_KV_LEASE_S + 15.0)
        except TimeoutError:
            raise ProofFailed(f"pages still in use with nothing running: {held}") from None


async def prove(engine: DockerEngine, scratch: Path) -> None:
    """Run every step and print what it saw. Raises what the first failing step raises, after cleaning up."""
    variables = stack_environment(image_tag=IMAGE_TAG)
    stack = Stack(engine=engine, project=PROJECT, files=(BASE_FILE, HOST_FILE), variables=variables)
    proof = Proof(stack=stack, scratch=scratch)
    await stack.down()  # what a run that was killed may have left
    try:
        for title, step in proof.steps():
            await _tell(title, step)
    except BaseException:
        await _show_logs(stack)
        raise
    finally:
        await stack.down()
        if not os.environ.get("KEEP_IMAGES"):
            await _remove_images(stack)


async def _remove_images(stack: Stack) -> None:
    names = ("--format", "{{.Repository}}:{{.Tag}}", f"--filter=reference=sangam-*:{IMAGE_TAG}")
    images = await stack.docker("image", "ls", *names)
    if images:
        await stack.docker("image", "rm", *images.split())
    if stack.engine.ours:  # somebody else's engine may have untagged images that are wanted
        await stack.docker("image", "prune", "--force")


async def _tell(title: str, step: Step) -> None:
    print(f"== {title}", flush=True)
    begun = time.monotonic()
    async with asyncio.TaskGroup() as group:
        progress = group.create_task(_tell_progress(begun))
        try:
            seen = await step()
        finally:
            progress.cancel()
    print(f"   ok after {time.monotonic() - begun:.1f} s: {seen}", flush=True)


async def _tell_progress(begun: float) -> None:
    while True:
        await asyncio.sleep(PROGRESS_INTERVAL_S)
        print(f"   ... {time.monotonic() - begun:.0f} s", flush=True)


async def _show_logs(stack: Stack) -> None:
    for container in await stack.containers():
        found = await stack.inspect(container)
        print(f"--- {found['Name'].lstrip('/')} ({health_of(found)})", file=sys.stderr)
        print("\n".join((await stack.logs(container))[-8:]), file=sys.stderr, flush=True)


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ProofFailed(otherwise)


def _failures(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _failures(each)]
    return [error]


async def _main() -> None:
    task = asyncio.current_task()
    assert task is not None
    # Ended from outside, it cleans up just the same.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    scratch = Path(tempfile.mkdtemp(prefix="sangam-proof-"))
    try:
        async with asyncio.timeout(TOTAL_TIMEOUT_S), docker_engine() as engine:
            await prove(engine, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> int:
    """Run the proof; returns the exit code."""
    begun = time.monotonic()
    failures: list[BaseException] = []
    try:
        asyncio.run(_main())
    except* (SangamError, TimeoutError, KeyboardInterrupt, asyncio.CancelledError) as group:
        failures = _failures(group)
    for error in failures:
        print(f"compose-test: FAILED: {str(error) or type(error).__name__}", file=sys.stderr)
    if not failures:
        print(f"compose-test: everything holds ({time.monotonic() - begun:.0f} s)")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

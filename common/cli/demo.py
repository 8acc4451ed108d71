"""Start a cluster of separate processes, ask it questions side by side, stream the answers, check them, stop it.

Exit code 0 means that all went right: every answer equals what the engine gives in process, every KV page came back,
and no process was left. The model that was trained for these questions, sangam-tiny, must also give the right answers.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from common.cli.answer_board import LINES_PER_ANSWER, MASK, AnswerBoard
from common.cli.answer_lines import AnswerLines, AnswerView
from common.cli.cluster import Cluster
from common.cli.cluster_config import ClusterConfig
from common.cli.default_model import DEFAULT_MODEL
from common.cli.demo_questions import BLOCK_LENGTH_TOKENS, DemoQuestion, demo_questions
from common.cli.demo_report import Asked, closing_lines, render_report
from common.cli.gateway_client import generate_at, request_of
from common.cli.interrupt import Interrupted, run_interruptible
from common.cli.main import EXIT_FAILED, EXIT_INTERRUPTED
from common.cli.run_dir import is_running
from common.cli.status import fetch_state, unfree_pages
from common.cli.supervisor import ServiceFailed
from common.cli.up import add_cluster_arguments, cluster_config
from common.errors import SangamError
from common.text_codec import load_text_codec

REQUEST_TIMEOUT_S = 120.0
PAGES_BACK_TIMEOUT_S = 5.0
OVERLOAD_THRESHOLD_TOKENS = 1
"""As low as can be: a prefill worker that has one prefill to do counts as overloaded, so a few questions overflow."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sangam demo`."""
    add_cluster_arguments(parser)
    parser.set_defaults(
        decode_workers=2, prefill_workers=None, overload_threshold=OVERLOAD_THRESHOLD_TOKENS, log_level="warning"
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; returns 0 only if all went right. Raises ConfigError or CheckpointError."""
    config = cluster_config(args, host="127.0.0.1", grpc_port=0)
    # Trained for these questions: the one model whose answers are asked to be right.
    knows_answers = config.model_dir.name == DEFAULT_MODEL
    try:
        return run_interruptible(_demo(config, knows_answers=knows_answers))
    except Interrupted:
        say("stopped")
        return EXIT_INTERRUPTED
    except ServiceFailed as error:
        print(f"sangam demo: error: {error}", file=sys.stderr)
        return EXIT_FAILED


def say(line: str) -> None:
    """A line for a person, in order with the streamed text."""
    print(f"== {line}", flush=True)


async def _demo(config: ClusterConfig, *, knows_answers: bool) -> int:
    questions = demo_questions()
    async with Cluster(config, say=say) as cluster:
        pids = cluster.processes
        say(f"{len(pids)} processes are up: {', '.join(f'{name} {pid}' for name, pid in pids.items())}")
        asked = await _ask_all(cluster.gateway_address, questions, config.model_dir)
        problems = await _missing_pages(cluster.scheduler_address)
        say("stopping everything")
    problems += [f"{name} (pid {pid}) is still running" for name, pid in pids.items() if is_running(pid)]
    say("running every question once more on the engine in this process, to compare")
    await asyncio.to_thread(_compare, config, asked)
    print(f"\n{render_report(asked, knows_answers=knows_answers)}\n")
    for line in closing_lines(asked, knows_answers=knows_answers, overload_threshold=config.overload_threshold_tokens):
        say(line)
    problems += [problem for one in asked for problem in one.problems(knows_answers=knows_answers)]
    for problem in problems:
        print(f"sangam demo: error: {problem}", file=sys.stderr)
    say("something went wrong, see above" if problems else "all went right; nothing is left running")
    return EXIT_FAILED if problems else 0


async def _ask_all(address: str, questions: Sequence[DemoQuestion], model_dir: Path) -> list[Asked]:
    say(f"asking {model_dir.name} {len(questions)} questions at once, at {address}:")
    view = _view([question.question.prompt for question in questions], model_dir)
    asked = await asyncio.gather(*(_ask(address, index, each, view) for index, each in enumerate(questions)))
    view.close()
    return asked


def _view(prompts: Sequence[str], model_dir: Path) -> AnswerView:
    size = shutil.get_terminal_size()
    if not sys.stdout.isatty() or size.lines <= LINES_PER_ANSWER * len(prompts):
        return AnswerLines(sys.stdout, prompts)
    say(f"every token shows up when the model is sure of it, in whatever order that is; {MASK} is still masked")
    codec = load_text_codec(model_dir)
    return AnswerBoard(
        sys.stdout, prompts, decode=codec.decode, block_length_tokens=BLOCK_LENGTH_TOKENS, width=size.columns
    )


async def _ask(address: str, index: int, question: DemoQuestion, view: AnswerView) -> Asked:
    asked = Asked(number=index + 1, question=question)
    request = request_of(question.wanted)
    request.include_revealed = True
    try:
        asked.output = await generate_at(
            address,
            request,
            timeout_s=REQUEST_TIMEOUT_S,
            on_text=lambda text: view.text(index, text),
            on_tokens=lambda positions, token_ids: view.tokens(index, positions, token_ids),
        )
    except SangamError as error:
        asked.failure = str(error)
    view.finish(index)
    return asked


async def _missing_pages(scheduler_address: str) -> list[str]:
    """Wait for every KV page to come back, in the scheduler's ledger and by the workers' own word."""
    deadline_s = asyncio.get_running_loop().time() + PAGES_BACK_TIMEOUT_S
    while True:
        state = await fetch_state(scheduler_address)
        problems = [
            f"{worker.life.worker_id}: {unfree_pages(worker)} of {worker.pages_total} KV pages in use when idle"
            for worker in state.workers
            if unfree_pages(worker)
        ]
        if not problems or asyncio.get_running_loop().time() > deadline_s:
            return problems
        await asyncio.sleep(0.05)


def _compare(config: ClusterConfig, asked: Sequence[Asked]) -> None:
    """Note for each answer how it differs from the engine's own."""
    # torch takes seconds to import: not before the cluster's own processes have done so.
    from common.cli.local_check import LocalCheck

    requests = [one.question.wanted for one in asked]
    check = LocalCheck.load(config.model_dir, requests, device=config.devices[0], dtype=config.dtype)
    for one in asked:
        if one.output is not None:
            one.local_verdict = check.verdict(one.question.wanted, one.output)

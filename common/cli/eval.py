"""Score a model on held-out questions, with every combination of cache mode, strategy and block length that is named.

Says for each: exact matches over all and by task, tokens per forward, forwards per answer, and agreement with cache
mode none. Runs the engine in this process, or asks a running cluster (--address). Options that take a list take it
separated by commas.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from common.cli.arguments import folder
from common.cli.default_model import default_model_dir
from common.cli.interrupt import Interrupted
from common.cli.main import EXIT_INTERRUPTED
from common.cli.plotting import check_plotting
from common.cli.progress import Progress
from common.config_values import DTYPE_CHOICES, is_address
from common.core.params import CacheMode, ConfidenceDynamic, ConfidenceQuota, ConfidenceThreshold, RevealStrategy
from common.corpus.question import Question
from common.corpus.questions import TASKS, held_out_questions
from common.errors import BadSamplingParams, ConfigError, InvalidRequest
from common.evaluation.answer import Answerer
from common.evaluation.evaluation import evaluate
from common.evaluation.plot import plot_quality
from common.evaluation.report import render, to_json
from common.evaluation.setting import Setting, grid

T = TypeVar("T")
DEFAULT_STRATEGIES: tuple[RevealStrategy, ...] = (ConfidenceQuota(1), ConfidenceThreshold(0.9))
_LOCAL_ONLY = ("model", "device", "dtype")
_OPTION_OF_FIELD = {"max_tokens": "--max-tokens", "block_length_tokens": "--block-length"}
"""Which option is to blame when the model cannot hold a question; the model itself for all else."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `sangam eval`."""
    _add_question_arguments(parser)
    _add_setting_arguments(parser)
    _add_place_arguments(parser)
    parser.add_argument("--wrong", type=int, default=0, metavar="N", help="show N wrong answers of each setting")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--plot", type=folder, metavar="DIR", help="write quality.png there (needs matplotlib)")


def run(args: argparse.Namespace) -> int:
    """Evaluate and print; returns 0. Raises `SangamError`, all of the user's mistakes before any compute."""
    plan = plan_of(args)
    if args.plot is not None:
        check_plotting(args.plot)
    with Progress(len(plan.questions) * len(plan.settings), "answers") as progress:
        try:
            answerer = _answerer(args, plan)
            results = evaluate(answerer, plan.questions, plan.settings, on_progress=progress.show)
        except Interrupted:
            return EXIT_INTERRUPTED
        except InvalidRequest as error:
            option = _OPTION_OF_FIELD.get(error.field, "--model")
            raise ConfigError(f"{option}: {error.problem}") from None
    if args.json:
        print(json.dumps(to_json(results, _facts(args, plan), shown_wrong=args.wrong), indent=2))
    else:
        print(render(results, shown_wrong=args.wrong))
    if args.plot is not None:
        plot_quality(results, args.plot)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked and how."""

    questions: tuple[Question, ...]
    settings: tuple[Setting, ...]


def plan_of(args: argparse.Namespace) -> Plan:
    """What the flags ask for, checked as far as it can be without the model. Raises ConfigError naming the option."""
    for name in ("per_task", "max_tokens", "concurrency"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')}: must be at least 1, not {getattr(args, name)}")
    if args.wrong < 0:
        raise ConfigError(f"--wrong: must be at least 0, not {args.wrong}")
    _check_place(args)
    caches = _list("--cache", args.cache, ", ".join(mode.value for mode in CacheMode), CacheMode)
    lengths = _list("--block-length", args.block_length, "whole numbers of at least 1", _length)
    tasks = _list("--tasks", args.tasks, ", ".join(TASKS), _task) if args.tasks is not None else TASKS
    questions = held_out_questions(per_task=args.per_task, seed=args.seed, tasks=tuple(dict.fromkeys(tasks)))
    return Plan(questions=tuple(questions), settings=grid(caches, _strategies(args), lengths))


def _answerer(args: argparse.Namespace, plan: Plan) -> Answerer:
    if args.address is not None:
        from common.evaluation.at_gateway import GatewayAnswerer

        return GatewayAnswerer(args.address, max_tokens=args.max_tokens, concurrency=args.concurrency)
    # torch takes seconds to import: only once the flags are known to be good.
    from common.evaluation.in_process import EngineAnswerer, EngineOptions

    options = EngineOptions(
        model_dir=_model_dir(args),
        device=args.device or "cpu",
        dtype=None if args.dtype == "auto" else args.dtype,
        max_tokens=args.max_tokens,
        batch_size=args.concurrency,
    )
    return EngineAnswerer.load(options, plan.questions, plan.settings)


def _model_dir(args: argparse.Namespace) -> Path:
    return args.model or default_model_dir()


def _facts(args: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """What was asked for, for whoever reads the JSON later."""
    place = {"address": args.address} if args.address is not None else {"model": str(_model_dir(args))}
    return {
        **place,
        "tasks": list(dict.fromkeys(question.task for question in plan.questions)),
        "questions": len(plan.questions),
        "per_task": args.per_task,
        "seed": args.seed,
        "max_tokens": args.max_tokens,
    }


def _add_question_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("questions")
    group.add_argument("--tasks", metavar="A,B,...", help=f"of {', '.join(TASKS)} (default: all)")
    group.add_argument("--per-task", type=int, default=20, metavar="N", help="questions of each (default %(default)s)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="which questions are drawn (default 0)")
    group.add_argument(
        "--max-tokens", type=int, default=64, metavar="N", help="most tokens of an answer (default %(default)s)"
    )


def _add_setting_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings: every combination is run, greedy")
    group.add_argument(
        "--cache",
        default="none,prefix,dual",
        metavar="A,B,...",
        help="of none, prefix, dual (default: all); none always runs, the others are compared with it",
    )
    group.add_argument("--threshold", metavar="C,...", help="reveal tokens of at least this confidence, 0 to 1")
    group.add_argument("--quota", metavar="K,...", help="reveal the K most confident tokens of each step")
    group.add_argument(
        "--dynamic",
        metavar="F,...",
        help="reveal an adaptive number of tokens, factor F (default, without any of these: quota 1 and threshold 0.9)",
    )
    group.add_argument("--block-length", default="32", metavar="N,...", help="tokens denoised together (default 32)")


def _add_place_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where it runs")
    group.add_argument("--local", action="store_true", help="the engine in this process (default without --address)")
    group.add_argument("--address", metavar="HOST:PORT", help="the gateway of a running cluster")
    group.add_argument(
        "--concurrency",
        type=int,
        default=16,
        metavar="N",
        help="questions at once: of one forward here, of calls to a cluster (default %(default)s)",
    )
    group.add_argument(
        "--model", metavar="DIR", type=folder, help="local: checkpoint folder (default: the built-in one)"
    )
    group.add_argument("--device", metavar="D", help="local: cpu or cuda:N (default cpu)")
    group.add_argument(
        "--dtype",
        choices=DTYPE_CHOICES,
        help="local: type of weights and K/V (default auto: float32 on cpu, bfloat16 on cuda)",
    )


def _check_place(args: argparse.Namespace) -> None:
    if args.address is None:
        return
    if not is_address(args.address):
        raise ConfigError(f"--address: {args.address!r} is not allowed; allowed: HOST:PORT")
    for name in ("local", *_LOCAL_ONLY):
        if getattr(args, name):
            raise ConfigError(f"--{name}: not with --address; allowed: one of them")


def _strategies(args: argparse.Namespace) -> tuple[RevealStrategy, ...]:
    """Those that are named, else the default ones."""
    given: list[RevealStrategy] = []
    for option, (allowed, parse) in _STRATEGY_OPTIONS.items():
        if (text := getattr(args, option)) is not None:
            given += _list(f"--{option}", text, allowed, parse)
    return tuple(given) or DEFAULT_STRATEGIES


def _checked(strategy: RevealStrategy) -> RevealStrategy:
    strategy.validate()
    return strategy


_STRATEGY_OPTIONS: dict[str, tuple[str, Callable[[str], RevealStrategy]]] = {
    "quota": ("whole numbers of at least 1", lambda text: _checked(ConfidenceQuota(int(text)))),
    "threshold": ("numbers from 0 to 1", lambda text: _checked(ConfidenceThreshold(float(text)))),
    "dynamic": ("numbers above 0", lambda text: _checked(ConfidenceDynamic(float(text)))),
}


def _task(name: str) -> str:
    if name not in TASKS:
        raise ValueError(name)
    return name


def _length(text: str) -> int:
    length = int(text)
    if length < 1:
        raise ValueError(text)
    return length


def _list(option: str, text: str, allowed: str, parse: Callable[[str], T]) -> list[T]:
    """The values of a list option. Raises ConfigError naming the option, the bad value and what is allowed."""
    values = []
    for word in text.split(","):
        try:
            values.append(parse(word.strip()))
        except (ValueError, BadSamplingParams):
            raise ConfigError(f"{option}: {word!r} is not allowed; allowed: {allowed}, separated by commas") from None
    return values

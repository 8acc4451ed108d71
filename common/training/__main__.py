"""`python -m common.training`: train sangam-tiny or its Dream-format twin from nothing."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from common.cli.progress import Progress as Bar
from common.errors import SangamError
from common.training.recipe import Recipe, first_steps_of, shape_of
from common.training.trainer import Intervals, Progress, Trainer
from common.training.vocabulary import corpus_pieces, vocabulary_rows

_DEFAULT_STEPS = {"llada": 25_000, "dream": 5000}


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, train, say how it goes. 0: done; 1: an error that was named; 130: interrupted."""
    parser = _parser()
    options = parser.parse_args(argv)
    steps = options.steps or _DEFAULT_STEPS[options.model]
    first_steps = first_steps_of(options.model, steps) if options.first_steps is None else options.first_steps
    if not 0 <= first_steps <= steps:
        parser.error(f"argument --first-steps: {first_steps} is not within 0 and --steps, {steps}")
    torch.set_num_threads(options.threads)
    pieces = corpus_pieces()
    recipe = Recipe(
        shape=shape_of(options.model, vocab_rows=vocabulary_rows(pieces)),
        steps=steps,
        first_steps=first_steps,
        seed=options.seed,
    )
    intervals = Intervals(steps=options.every, questions_per_task=options.questions_per_task)
    try:
        trainer = Trainer(
            recipe, pieces=pieces, model_dir=options.out, intervals=intervals, compiled=not options.no_compile
        )
        first = trainer.resume() if options.resume else 0
        parameters = sum(parameter.numel() for parameter in trainer.network.parameters())
        print(f"{parameters:,} parameters, steps {first} to {recipe.steps}, into {options.out}", flush=True)
        with Bar(recipe.steps, "steps") as bar:
            trainer.run(_Report(bar, recipe.steps, first).show)
    except SangamError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted; go on with --resume (at most {options.every} steps are lost)", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m common.training",
        description="Train a small diffusion language model on generated questions, into a Hugging Face folder. "
        "The same options on the same kind of machine give the same weights. Writes config, tokenizer, float16 weights "
        "and the state to resume from; every now and then it asks held-out questions and prints each task's share of "
        "exactly right answers.",
    )
    parser.add_argument("--model", choices=("llada", "dream"), default="llada", help="format and size (default llada)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write, made when absent")
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="batches to train on; the schedule follows it (default: 25000 for llada, 5000 for dream)",
    )
    parser.add_argument(
        "--first-steps",
        type=int,
        metavar="N",
        help="as many of them on the corpus' first mix of questions (default: 22 of 25 for llada, none for dream)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides weights, data and noise (default 0)")
    parser.add_argument("--resume", action="store_true", help="go on from DIR's state; needs the same other options")
    parser.add_argument(
        "--every", type=int, default=1000, metavar="N", help="steps between states and examinations (default 1000)"
    )
    parser.add_argument(
        "--questions-per-task", type=int, default=12, metavar="N", help="held-out questions asked (default 12)"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="torch's threads (default 1)")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which needs a C++ compiler")
    return parser


class _Report:
    """What a run brings, beside the bar: smoothed loss, speed, time to go; the shares of right answers when known."""

    def __init__(self, bar: Bar, steps: int, first: int) -> None:
        self._bar = bar
        self._steps = steps
        self._first = first
        self._started_s = time.monotonic()
        self._tokens = 0
        self._loss: float | None = None

    def show(self, progress: Progress) -> None:
        """Say what one step brought."""
        self._tokens += progress.canvas_tokens
        self._loss = progress.loss if self._loss is None else 0.98 * self._loss + 0.02 * progress.loss
        self._bar.show(progress.step, self._note(progress.step, self._loss))
        if progress.match is not None:
            shares = "  ".join(f"{task} {share:.0%}" for task, share in progress.match.items())
            mean = sum(progress.match.values()) / len(progress.match)
            print(f"\nstep {progress.step}: held-out answers right {mean:.1%}:  {shares}", flush=True)

    def _note(self, step: int, loss: float) -> str:
        elapsed_s = time.monotonic() - self._started_s
        left_s = elapsed_s / (step - self._first) * (self._steps - step)
        return (
            f"loss {loss:.4f}, {self._tokens / elapsed_s:,.0f} tokens/s, "
            f"{elapsed_s / 60:.1f} min, {left_s / 60:.1f} to go"
        )


if __name__ == "__main__":
    sys.exit(main())

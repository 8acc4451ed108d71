"""What the demo says in the end: for each question what it cost and where it ran, and whether the answer holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.cli.demo_questions import DemoQuestion
from common.cli.generation_output import SAME, GenerationOutput
from common.cli.table import render_table
from common.config_values import TokensOrAuto
from common.evaluation.setting import strategy_label
from common.generation_input import GenerationInput


@dataclass(slots=True, kw_only=True)
class Asked:
    """One question and what came of it: an output, or the words of a failure.

    `local_verdict` is `SAME` when the engine in process gives the same, else what differs.
    """

    number: int
    question: DemoQuestion
    output: GenerationOutput | None = None
    failure: str = ""
    local_verdict: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the answer is the one that counts as right, to the letter."""
        return self.output is not None and self.output.text == self.question.question.answer

    def problems(self, *, knows_answers: bool) -> list[str]:
        """What went wrong, in words; `knows_answers`: a wrong answer counts."""
        name = f"question {self.number}"
        if self.output is None:
            return [f"{name}: {self.failure}"]
        problems = [] if self.local_verdict == SAME else [f"{name}: {self.local_verdict}"]
        if knows_answers and not self.is_right:
            problems.append(f"{name}: {self.output.text!r} is not the right answer {self.question.question.answer!r}")
        return problems


def render_report(asked: Sequence[Asked], *, knows_answers: bool) -> str:
    """A table with a row for each question."""
    header = (
        *("#", "question", "cache, reveals", "tokens", "prefills", "decodes", "per forward"),
        *("prefilled on", "attempts", "right", "equals --local"),
    )
    return render_table(header, [_row(one, knows_answers) for one in asked])


def closing_lines(asked: Sequence[Asked], *, knows_answers: bool, overload_threshold: TokensOrAuto) -> list[str]:
    """What all answers cost together, and what the table's stars mean."""
    outputs = [one.output for one in asked if one.output is not None]
    tokens = sum(len(output.token_ids) for output in outputs)
    prefills = sum(output.prefill_forwards for output in outputs)
    decodes = sum(output.decode_forwards for output in outputs)
    overflowed = sum(block.overflow for output in outputs for block in output.blocks)
    moved_bytes = sum(block.transfer_bytes for output in outputs for block in output.blocks)
    lines = [
        f"{tokens} tokens took {prefills} prefills and {decodes} decode steps: "
        f"{tokens / max(1, prefills + decodes):.1f} tokens per forward",
        f"{moved_bytes / 1024:.0f} KiB of K/V moved from prefill to decode workers",
    ]
    if overflowed:
        lines.append(
            f"* {overflowed} of {prefills} prefills overflowed onto decode workers: every prefill worker was "
            f"overloaded (--overload-threshold {overload_threshold})"
        )
    if knows_answers:
        lines.insert(0, f"{sum(one.is_right for one in asked)} of {len(asked)} answers are right")
    return lines


def _way(wanted: GenerationInput) -> str:
    return f"{wanted.cache_mode.value}, {strategy_label(wanted.strategy)}"


def _row(asked: Asked, knows_answers: bool) -> tuple[str, ...]:
    first = (str(asked.number), asked.question.question.task, _way(asked.question.wanted))
    output = asked.output
    if output is None:
        return (*first, *("-",) * 6, "no", "no")
    forwards = output.prefill_forwards + output.decode_forwards
    return (
        *first,
        *(str(len(output.token_ids)), str(output.prefill_forwards), str(output.decode_forwards)),
        *(f"{len(output.token_ids) / max(1, forwards):.1f}", _prefilled_on(output), str(output.attempts)),
        *(_yes(asked.is_right) if knows_answers else "-", _yes(asked.local_verdict == SAME)),
    )


def _prefilled_on(output: GenerationOutput) -> str:
    """Workers that ran the prefills, in order of blocks; a star marks overflow."""
    names = (f"{block.prefill_worker_id}{'*' * block.overflow}" for block in output.blocks)
    return ", ".join(dict.fromkeys(names))


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"

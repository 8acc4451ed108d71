"""An evaluation as tables for a terminal, and as one JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from common.cli.table import render_table
from common.evaluation.evaluation import SettingResult
from common.evaluation.score import Score
from common.evaluation.setting import strategy_label

_RATES = (
    *("exact_match", "answer_tokens_per_forward", "revealed_tokens_per_forward", "prefills_per_answer"),
    *("decodes_per_answer", "answer_agreement", "token_agreement"),
)
_COUNTS = (
    *("questions", "right", "answer_tokens", "revealed_tokens", "prefill_forwards", "decode_forwards"),
    *("same_answers", "same_tokens", "compared_tokens"),
)
_HEADER = (
    *("#", "cache", "strategy", "block", "exact %", "tokens/forward", "revealed/forward"),
    *("prefills", "decodes", "same answers %", "same tokens %", "seconds"),
)


def render(results: Sequence[SettingResult], *, shown_wrong: int) -> str:
    """A table of the settings, one of exact matches by task, and `shown_wrong` wrong answers of each setting."""
    asked = results[0].overall.questions
    return "\n".join(
        (
            f"{asked} questions; prefills and decodes: forwards per answer; same: as with cache none",
            render_table(_HEADER, [(str(number), *_cells(result)) for number, result in enumerate(results, start=1)]),
            "",
            "exact matches by task, % (columns: settings by number)",
            _task_table(results),
            *(line for number, result in enumerate(results, start=1) for line in _wrong(number, result, shown_wrong)),
        )
    )


def to_json(results: Sequence[SettingResult], facts: dict[str, Any], *, shown_wrong: int) -> dict[str, Any]:
    """`facts` (what was asked for) and every setting's counts and rates, over all and by task."""
    return {**facts, "settings": [_setting_json(result, shown_wrong) for result in results]}


def _task_table(results: Sequence[SettingResult]) -> str:
    rows = [
        (task, str(first.questions), *(_percent(result.by_task[task].exact_match) for result in results))
        for task, first in results[0].by_task.items()
    ]
    return render_table(("task", "questions", *(f"#{number}" for number in range(1, len(results) + 1))), rows)


def _wrong(number: int, result: SettingResult, shown: int) -> Iterator[str]:
    for question, answer in result.wrong()[:shown]:
        yield ""
        yield f"#{number} {question.task}: {question.prompt}"
        yield f"  expected {question.answer!r}"
        yield f"  answered {answer.text!r}"


def _cells(result: SettingResult) -> tuple[str, ...]:
    score = result.overall
    revealed = score.revealed_tokens_per_forward
    return (
        result.setting.cache_mode.value,
        strategy_label(result.setting.strategy),
        str(result.setting.block_length_tokens),
        _percent(score.exact_match),
        f"{score.answer_tokens_per_forward:.2f}",
        "-" if revealed is None else f"{revealed:.2f}",
        f"{score.prefills_per_answer:.2f}",
        f"{score.decodes_per_answer:.2f}",
        _percent(score.answer_agreement),
        _percent(score.token_agreement),
        f"{result.elapsed_s:.1f}",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _setting_json(result: SettingResult, shown_wrong: int) -> dict[str, Any]:
    return {
        "cache": result.setting.cache_mode.value,
        "strategy": strategy_label(result.setting.strategy),
        "block_length_tokens": result.setting.block_length_tokens,
        "elapsed_s": result.elapsed_s,
        "overall": _score_json(result.overall),
        "tasks": {task: _score_json(score) for task, score in result.by_task.items()},
        "wrong": [
            {"task": question.task, "prompt": question.prompt, "expected": question.answer, "answered": answer.text}
            for question, answer in result.wrong()[:shown_wrong]
        ],
    }


def _score_json(score: Score) -> dict[str, Any]:
    return {name: getattr(score, name) for name in (*_RATES, *_COUNTS)}

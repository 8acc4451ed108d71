"""The grid, its runs and what is made of them, with answers that the test writes itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from common.core.params import CacheMode, ConfidenceDynamic, ConfidenceQuota, ConfidenceThreshold
from common.corpus.question import Question
from common.evaluation.answer import Answer
from common.evaluation.evaluation import SettingResult, evaluate
from common.evaluation.plot import plot_quality
from common.evaluation.report import render, to_json
from common.evaluation.setting import Setting, grid

QUESTIONS = (
    Question(task="addition", prompt="1+1?", answer="2"),
    Question(task="addition", prompt="5+4?", answer="9"),
    Question(task="sorting", prompt="Sort 3 1.", answer="1 3"),
)


class Scripted:
    """Answers rightly without a cache; with one, it gets `mistaken` prompts wrong and needs one forward less."""

    def __init__(self, mistaken: Sequence[str] = ()) -> None:
        self.asked: list[Setting] = []
        self._mistaken = mistaken

    def answer(self, questions: Sequence[Question], setting: Setting, *, on_answer: Callable[[], None]) -> list[Answer]:
        self.asked.append(setting)
        answers = []
        for question in questions:
            cached = setting.cache_mode is not CacheMode.NONE
            text = "?" if cached and question.prompt in self._mistaken else question.answer
            answers.append(
                Answer(
                    token_ids=(*text.encode(), 0),
                    text=text,
                    prefill_forwards=1,
                    decode_forwards=3 - cached,
                    revealed_tokens=8,
                )
            )
            on_answer()
        return answers


def run(answerer: Scripted, settings: Sequence[Setting]) -> list[SettingResult]:
    return evaluate(answerer, QUESTIONS, settings, on_progress=lambda done, label: None)


def test_the_grid_has_every_combination_once_each_after_its_baseline():
    settings = grid([CacheMode.DUAL, CacheMode.DUAL], [ConfidenceQuota(1), ConfidenceThreshold(0.9)], [8, 32])
    assert len(settings) == len(set(settings)) == 2 * 2 * 2
    for index, setting in enumerate(settings):
        assert setting.baseline in settings[: index + 1]
    assert {setting.cache_mode for setting in settings} == {CacheMode.NONE, CacheMode.DUAL}


def test_labels_are_what_the_options_say():
    (none, dual) = grid([CacheMode.DUAL], [ConfidenceDynamic(1.5)], [16])
    assert (none.label, dual.label) == ("none, dynamic 1.5, block 16", "dual, dynamic 1.5, block 16")


def test_every_question_is_asked_under_every_setting_and_progress_tells():
    settings = grid([CacheMode.PREFIX, CacheMode.DUAL], [ConfidenceQuota(2)], [8])
    answerer, heard = Scripted(), list[tuple[int, str]]()
    evaluate(answerer, QUESTIONS, settings, on_progress=lambda done, label: heard.append((done, label)))
    assert answerer.asked == list(settings)
    assert heard == [(3 * row + number, setting.label) for row, setting in enumerate(settings) for number in (1, 2, 3)]


def test_scores_over_all_and_by_task():
    none, dual = run(Scripted(mistaken=["5+4?"]), grid([CacheMode.DUAL], [ConfidenceQuota(1)], [8]))
    assert (none.overall.right, dual.overall.right) == (3, 2)
    assert {task: score.exact_match for task, score in dual.by_task.items()} == {"addition": 0.5, "sorting": 1.0}
    assert (none.overall.answer_agreement, dual.by_task["addition"].same_answers) == (1.0, 1)
    assert [(question.prompt, answer.text) for question, answer in dual.wrong()] == [("5+4?", "?")]


def test_the_report_shows_each_setting_each_task_and_wrong_answers():
    text = render(run(Scripted(mistaken=["5+4?"]), grid([CacheMode.DUAL], [ConfidenceQuota(1)], [8])), shown_wrong=2)
    lines = [line.split() for line in text.splitlines()]
    # 2 + 2 + 4 tokens in 12 forwards without a cache; 8 revealed each; in 9 forwards with one.
    assert lines[2][:10] == ["1", "none", "quota", "1", "8", "100.0", "0.67", "2.00", "1.00", "3.00"]
    assert lines[3][:10] == ["2", "dual", "quota", "1", "8", "66.7", "0.89", "2.67", "1.00", "2.00"]
    assert lines[3][10:12] == ["66.7", "87.5"]
    assert ["addition", "2", "100.0", "50.0"] in lines and ["sorting", "1", "100.0", "100.0"] in lines
    assert text.endswith("\n\n#2 addition: 5+4?\n  expected '9'\n  answered '?'")


def test_the_document_is_json_with_counts_rates_and_wrong_answers():
    results = run(Scripted(mistaken=["1+1?", "5+4?"]), grid([CacheMode.DUAL], [ConfidenceThreshold(0.9)], [32]))
    document = json.loads(json.dumps(to_json(results, {"seed": 3}, shown_wrong=1)))
    assert document["seed"] == 3
    none, dual = document["settings"]
    assert (none["cache"], dual["cache"], dual["strategy"], dual["block_length_tokens"]) == (
        *("none", "dual", "threshold 0.9"),
        32,
    )
    assert (none["wrong"], len(dual["wrong"])) == ([], 1)
    assert dual["wrong"][0] == {"task": "addition", "prompt": "1+1?", "expected": "2", "answered": "?"}
    assert dual["tasks"]["addition"]["exact_match"] == 0.0 and dual["tasks"]["sorting"]["exact_match"] == 1.0
    assert dual["overall"]["right"] == 1 and dual["overall"]["same_answers"] == 1


@pytest.mark.parametrize("lengths", [(8,), (8, 16, 32)])
def test_the_plot_is_a_png(tmp_path, lengths):
    settings = grid(list(CacheMode), [ConfidenceQuota(1), ConfidenceThreshold(0.9)], lengths)
    path = plot_quality(run(Scripted(), settings), tmp_path)
    assert path == tmp_path / "quality.png" and path.read_bytes().startswith(b"\x89PNG")

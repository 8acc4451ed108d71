"""The models in the package: loadable, small, with a chat template, and as good as their cards say, not better."""

from __future__ import annotations

from pathlib import Path

import pytest

import common.models
from common.core.params import CacheMode, ConfidenceThreshold
from common.corpus.questions import TASKS, held_out_questions
from common.evaluation.evaluation import SettingResult, evaluate
from common.evaluation.in_process import EngineAnswerer, EngineOptions
from common.evaluation.setting import Setting
from common.model_config import load_model_config
from common.training.vocabulary import corpus_pieces, write_tokenizer

_MODELS = Path(common.models.__file__).parent
_MAX_BYTES = 16_000_000
_FAMILIES = {"sangam-tiny": "llada", "sangam-tiny-dream": "dream"}
_LEAST_RIGHT = {"sangam-tiny": 0.95, "sangam-tiny-dream": 0.65}
"""Share of right answers over all tasks."""
_RELIABLE_TASKS = {"sangam-tiny": TASKS, "sangam-tiny-dream": ("counting", "reversing", "small_talk", "sorting")}
"""Eight answers of ten are right at least: ten questions of a task are few."""
_SETTING = Setting(cache_mode=CacheMode.NONE, strategy=ConfidenceThreshold(0.9), block_length_tokens=32)


def _evaluated(name: str, *, tasks: tuple[str, ...], per_task: int) -> SettingResult:
    questions = held_out_questions(per_task=per_task, seed=0, tasks=tasks)
    options = EngineOptions(model_dir=_MODELS / name, device="cpu", dtype=None, max_tokens=64, batch_size=16)
    (result,) = evaluate(
        EngineAnswerer.load(options, questions, [_SETTING]), questions, [_SETTING], on_progress=lambda done, label: None
    )
    return result


@pytest.mark.parametrize("name", _FAMILIES)
def test_the_folder_is_whole_and_small(name: str) -> None:
    files = {path.name: path.stat().st_size for path in (_MODELS / name).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"} == set(files)
    assert sum(files.values()) <= _MAX_BYTES
    assert load_model_config(_MODELS / name).family == _FAMILIES[name]


@pytest.mark.parametrize("name", _FAMILIES)
def test_the_corpus_still_makes_their_vocabulary(name: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, corpus_pieces())
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (_MODELS / name / file).read_bytes() == (tmp_path / file).read_bytes()


@pytest.mark.parametrize("name", _FAMILIES)
def test_held_out_questions_are_answered_exactly(name: str) -> None:
    result = _evaluated(name, tasks=TASKS, per_task=10)
    wrong = [(question.prompt, answer.text) for question, answer in result.wrong()]
    assert result.overall.exact_match >= _LEAST_RIGHT[name], wrong
    for task in _RELIABLE_TASKS[name]:
        assert result.by_task[task].right >= 8, (task, wrong)


@pytest.mark.parametrize("name", _FAMILIES)
def test_a_threshold_reveals_several_tokens_in_a_forward(name: str) -> None:
    result = _evaluated(name, tasks=("multiplication", "word_problems"), per_task=5)
    forwards = sum(answer.prefill_forwards + answer.decode_forwards for answer in result.answers)
    assert sum(len(answer.token_ids) for answer in result.answers) / forwards >= 2.5

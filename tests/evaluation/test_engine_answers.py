"""Answers of the engine in process: many at once, each the one that `sangam generate --local` gives a chat turn."""

from __future__ import annotations

import json

import pytest

from common.cli.main import main
from common.core.params import CacheMode, ConfidenceQuota, ConfidenceThreshold
from common.corpus.questions import held_out_questions
from common.evaluation.in_process import EngineAnswerer, EngineOptions
from common.evaluation.setting import Setting, grid, strategy_label
from common.random_checkpoint import build_random_checkpoint

MAX_TOKENS = 24
QUESTIONS = held_out_questions(per_task=2, seed=1, tasks=("addition", "sorting", "word_problems"))
SETTINGS = grid([CacheMode.PREFIX, CacheMode.DUAL], [ConfidenceQuota(3), ConfidenceThreshold(0.6)], [8])


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluation") / "model"
    build_random_checkpoint(path, max_canvas_tokens=256, chat=True)
    return path


@pytest.fixture(scope="module")
def answerer(model_dir) -> EngineAnswerer:
    options = EngineOptions(model_dir=model_dir, device="cpu", dtype=None, max_tokens=MAX_TOKENS, batch_size=4)
    return EngineAnswerer.load(options, QUESTIONS, SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.label)
def test_answers_equal_those_of_generate(answerer, model_dir, setting: Setting, capsys):
    heard: list[None] = []
    answers = answerer.answer(QUESTIONS, setting, on_answer=lambda: heard.append(None))
    assert len(answers) == len(heard) == len(QUESTIONS)
    for question, answer in list(zip(QUESTIONS, answers, strict=True))[::2]:
        option, value = strategy_label(setting.strategy).split()
        flags = ["--model", str(model_dir), "--prompt", question.prompt, "--max-tokens", str(MAX_TOKENS)]
        flags += ["--cache", setting.cache_mode.value, "--block-length", "8", f"--{option}", value]
        assert main(["generate", "--local", "--json", *flags]) == 0
        report = json.loads(capsys.readouterr().out)
        assert answer.token_ids == tuple(report["token_ids"]) and answer.text == report["text"]
        assert answer.prefill_forwards == report["prefill_forwards"]
        assert answer.decode_forwards == report["decode_forwards"]
        assert answer.revealed_tokens is not None and answer.revealed_tokens >= len(answer.token_ids)

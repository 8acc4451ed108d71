"""Measured step times out of workers' stories, for `--calibrate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from common.sim.calibration import MeasuredStep
from common.sim.story_steps import is_story, steps_of_stories
from tests.core.worker_work import work
from tests.story.recorded import scheduler_story, worker_story


def test_a_workers_story_has_its_forwards(tmp_path: Path) -> None:
    story = tmp_path / "prefill-0.story.jsonl"
    worker_story(story)
    assert is_story(story) and not is_story(tmp_path / "steps.json")
    (step,) = steps_of_stories(story, option="--calibrate")
    assert step == MeasuredStep(prefill_tokens=work("kept").canvas_tokens, decode_tokens=0, seconds=0.1)


def test_of_a_folder_the_workers_stories_are_read(tmp_path: Path) -> None:
    for name in ("prefill-0", "prefill-1"):
        worker_story(tmp_path / f"{name}.story.jsonl")
    scheduler_story(tmp_path / "scheduler.story.jsonl")
    assert is_story(tmp_path)
    assert len(steps_of_stories(tmp_path, option="--calibrate")) == 2


@pytest.mark.parametrize("content", [None, "", "{}\n", "nonsense\n"])
def test_what_tells_of_no_forward_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "decode-0.story.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--calibrate: .*(no forward|is no story|is not JSON)"):
        steps_of_stories(tmp_path, option="--calibrate")


def test_a_story_that_goes_on_otherwise_now_is_refused(tmp_path: Path) -> None:
    story = tmp_path / "prefill-0.story.jsonl"
    worker_story(story)
    text = story.read_text(encoding="utf-8")
    assert text.count('"duration_s":0.1') == 1
    story.write_text(text.replace('"duration_s":0.1', '"duration_s":0.2'), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--calibrate: .*decides otherwise now"):
        steps_of_stories(story, option="--calibrate")

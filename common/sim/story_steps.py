"""Step times of a live engine, out of the stories that its workers have written (`--story-dir`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.core.worker_effects import Report
from common.errors import ConfigError
from common.sim.calibration import MeasuredStep
from common.story.cores import WORKER
from common.story.reader import StoryReader, Told
from common.story.replay import replay
from common.story.writer import SUFFIX


def is_story(path: Path) -> bool:
    """Whether that is a story by its name, or a folder, as `--story-dir` names it."""
    return path.name.endswith(SUFFIX) or path.is_dir()


def steps_of_stories(path: Path, *, option: str) -> list[MeasuredStep]:
    """Every forward of the worker's story `path`, or of all workers' stories in that folder.

    The events of a story are run again; what the core reports after each forward has its tokens and its time. Raises
    ConfigError naming `option` and the file.
    """
    stories = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    try:
        of_workers = [story for story in stories if _core_of(story) == WORKER]
        steps = [step for story in of_workers for step in _steps_of(story)]
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None
    if not steps:
        raise ConfigError(f"{option}: {path} tells of no forward; allowed: stories of workers that have run some")
    return steps


def _core_of(story: Path) -> str:
    reader = StoryReader(story)
    reader.close()
    return reader.core


def _steps_of(story: Path) -> list[MeasuredStep]:
    steps: dict[int, MeasuredStep] = {}

    def watch(told: Told, effects: Sequence[Any], share: float) -> None:
        for report in (effect.report for effect in effects if isinstance(effect, Report)):
            if report.iteration and report.duration_s > 0.0:
                steps[report.iteration] = MeasuredStep(
                    prefill_tokens=report.prefill_tokens_admitted,
                    decode_tokens=report.decode_tokens,
                    seconds=report.duration_s,
                )

    if replay(story, watch).parting is not None:
        raise ConfigError(f"{story} was written by another version: its core decides otherwise now")
    return list(steps.values())

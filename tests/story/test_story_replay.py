"""A recorded story, replayed, leads to the same effects; whatever is wrong with it is found at its place."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from common.cli.main import main
from common.core.ids import ServingMode
from common.errors import ConfigError
from common.story.replay import replay
from common.story.writer import MAX_STORIES, SUFFIX, UNTOLD, StoryWriter, open_story
from tests.story.recorded import registry_story, scheduler_story, worker_story


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewrite(path: Path, number: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change event `number` (from 1) of a story."""
    lines = lines_of(path)
    change(lines[number])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def nothing(event: object, now: float) -> list[object]:
    return []


@pytest.mark.parametrize("mode", list(ServingMode))
def test_a_scheduler_does_again_what_it_did(tmp_path: Path, mode: ServingMode) -> None:
    path = tmp_path / "a"
    refusals = scheduler_story(path, mode=mode)
    told = replay(path)
    assert told.parting is None and not told.error and not told.is_cut_short
    lines = lines_of(path)[1:]
    assert told.events == len(lines)
    assert told.effects == sum(len(line.get("effects", ())) for line in lines) > 100
    assert sum("refused" in line.get("error", "") for line in lines) == refusals


def test_a_worker_does_again_what_it_did(tmp_path: Path) -> None:
    worker_story(tmp_path / "a")
    told = replay(tmp_path / "a")
    assert (told.parting, told.core, told.service, told.events) == (None, "worker", "prefill-0", 5)
    effects = [name for line in lines_of(tmp_path / "a")[1:] for name in line.get("effects", ())]
    assert {"RunIteration", "RetainKv", "SendPrefillResult", "ForgetKv"} <= set(effects)


def test_a_registry_answers_again_what_it_answered(tmp_path: Path) -> None:
    registry_story(tmp_path / "a")
    told = replay(tmp_path / "a")
    assert (told.parting, told.core, told.events) == (None, "registry", 8)
    answers = [line.get("effects", []) for line in lines_of(tmp_path / "a")[1:]]
    assert answers[:2] == [["KvOutcome", "KvOutcome"], ["KvHandle"]]


def test_an_event_that_was_tampered_with_is_where_it_parts(tmp_path: Path) -> None:
    path = tmp_path / "a"
    scheduler_story(path)
    lines = lines_of(path)
    number = next(i for i, line in enumerate(lines) if "CallPrefill" in line.get("effects", ()) and i > 20)
    rewrite(path, number, lambda line: line.update(digest="0" * 16))
    parting = replay(path).parting
    assert parting is not None
    assert parting.told.number == number
    assert parting.outcome.effects == tuple(lines[number]["effects"])
    assert "CallPrefill" in [type(effect).__name__ for effect in parting.effects]


def test_another_limit_in_the_settings_is_found_at_the_event_where_it_first_counts(tmp_path: Path) -> None:
    path = tmp_path / "a"
    worker_story(path)
    rewrite(path, 0, lambda line: line["config"].update(kv_lease_s=31.0))
    parting = replay(path).parting
    assert parting is not None and parting.told.number == 4  # the first that speaks of a lease
    assert parting.outcome.effects == parting.told.outcome.effects


def test_a_bug_is_told_before_it_ends_the_process_and_met_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    worker_story(path)
    # The worker core asserts that an outcome is of the batch that runs.
    lines = lines_of(path)
    outcome = next(line for line in lines if line.get("event", {}).get("_") == "IterationCompleted")
    bug = {"at": 99.0, "event": outcome["event"], "error": "raised AssertionError: 1"}
    with path.open("a") as file:
        file.write(json.dumps(bug) + "\n")
    told = replay(path)
    assert told.parting is None and told.error == "raised AssertionError: 1"


def test_what_a_handle_raises_is_the_last_that_is_told(tmp_path: Path) -> None:
    def handle(event: object, now: float) -> list[object]:
        raise AssertionError("a bug")

    with (
        closing(StoryWriter(tmp_path / "a", core="registry", service="s", config=None)) as story,
        pytest.raises(AssertionError, match="a bug"),
    ):
        story.recorded(handle)(None, 2.0)
    assert lines_of(tmp_path / "a")[-1] == {"at": 2.0, "event": None, "error": "raised AssertionError: a bug"}


def test_a_story_ends_at_its_limit_and_says_so(tmp_path: Path) -> None:
    story = StoryWriter(tmp_path / "a", core="scheduler", service="s", config=None, max_bytes=400)
    for number in range(100):
        story.recorded(nothing)(None, float(number))
    assert (tmp_path / "a").stat().st_size < 600
    assert "limit of 400 bytes" in lines_of(tmp_path / "a")[-1]["end"]


def test_a_story_without_its_last_words_is_replayed_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    registry_story(path)
    path.write_bytes(path.read_bytes()[:-9])
    told = replay(path)
    assert told.parting is None and told.is_cut_short and told.events == 7


def test_a_service_keeps_its_newest_stories_only(tmp_path: Path) -> None:
    for _ in range(MAX_STORIES + 3):
        open_story(tmp_path, core="registry", service="kv/store", config=None).close()
    open_story(tmp_path, core="registry", service="other", config=None).close()
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) == MAX_STORIES + 1
    assert all(name.startswith(("kv_store.", "other.")) and name.endswith(SUFFIX) for name in kept)


def test_a_story_is_its_owners_alone(tmp_path: Path) -> None:
    registry_story(tmp_path / "a")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_no_folder_means_no_story_and_no_cost(tmp_path: Path) -> None:
    assert open_story(None, core="registry", service="kv_store", config=None) is UNTOLD
    assert UNTOLD.recorded(nothing) is nothing


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--story-dir: .*file.* cannot be written to"):
        open_story(tmp_path / "file" / "stories", core="registry", service="kv_store", config=None)


def test_the_command_says_that_all_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry_story(tmp_path / "one")
    worker_story(tmp_path / "two")
    assert main(["replay", str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "one: 8 events of the registry core of kv_store, 9 effects: the same"
    assert said[1].startswith("two: 5 events of the worker core of prefill-0") and said[1].endswith(": the same")


def test_the_command_shows_where_a_story_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry_story(tmp_path / "a")
    rewrite(tmp_path / "a", 3, lambda line: line.update(effects=[], digest=""))
    assert main(["replay", str(tmp_path / "a")]) == 1
    said = capsys.readouterr().out
    assert "event 3 at 2.000000 s: Renew(" in said
    assert "then: nothing" in said and "now:  KvOutcome (" in said


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is no story: its first line says nothing of one"),
        ("hello\n", "line 1: is not JSON"),
        ("[]\n", "line 1: must be an object"),
        ('{"a": 1}\n', "is no story: its first line says nothing of one"),
        ('{"story": 2}\n', "is a story of version 2; this program reads 1"),
        ('{"story": 1, "core": "engine"}\n', "core must be one of ['registry', 'scheduler', 'worker'], not 'engine'"),
        ('{"story": 1, "core": "scheduler", "config": 3}\n', "line 1: config: must be a SchedulerConfig, not 3"),
        ('{"story": 1, "core": "registry"}\n{"at": 1, "event": {}}\n', "line 2: event._: must be one of"),
        ('{"story": 1, "core": "registry"}\n{"event": 1}\n', "line 2: at: must be a value of type float"),
        ('{"story": 1, "core": "registry"}\n\x00\n', "line 2: is not JSON"),
    ],
)
def test_a_bad_file_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    assert main(["replay", str(path)]) == 2
    said = capsys.readouterr()
    assert problem in said.err and said.err.count("\n") == 1 and said.err.startswith("sangam replay: error: ")
    assert said.out == ""


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"sangam replay: error: {tmp_path / 'none'}: No such file or directory\n"

"""Runs a story again in a fresh core and compares what follows from every event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.story.outcome import Outcome, attempt
from common.story.reader import StoryReader, Told


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The first event that led to something else than it did when the story was written."""

    told: Told
    outcome: Outcome
    effects: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """How a replay went. `parting` None: the core did again what it did before.

    `error` is what the last event raised, if the story ends with a bug; `end` why the story stops, if it says so;
    `is_cut_short`: its last line is missing its end, as a kill leaves it.
    """

    core: str
    service: str
    events: int
    effects: int
    parting: Parting | None
    error: str
    end: str
    is_cut_short: bool


Watch = Callable[[Told, Sequence[Any], float], None]
"""Called with each event, the effects that it led to this time, and the share of the file read so far (0 to 1)."""


def replay(path: Path, watch: Watch = lambda told, effects, share: None) -> Replay:
    """Replay the story in `path` up to its end, or to where it parts from the record. Raises `BadStory`."""
    reader = StoryReader(path)
    try:
        return _replay(reader, watch)
    finally:
        reader.close()


def _replay(reader: StoryReader, watch: Watch) -> Replay:
    handle = reader.kind.make(reader.config)
    events = effects = 0
    parting: Parting | None = None
    error = ""
    for told in reader.events():
        outcome, reached = attempt(handle, told.event, told.at_s)
        events += 1
        effects += len(reached)
        watch(told, reached, reader.bytes_read / reader.bytes_total)
        if outcome != told.outcome:
            parting = Parting(told=told, outcome=outcome, effects=reached)
            break
        error = outcome.error if outcome.is_bug else ""
    return Replay(
        core=reader.core,
        service=reader.service,
        events=events,
        effects=effects,
        parting=parting,
        error=error,
        end=reader.end,
        is_cut_short=reader.is_cut_short,
    )

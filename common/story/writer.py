"""Writes a core's story while it happens: its settings, then every event with its time and a digest of what followed.

The file is JSON lines, version 1:

    {"story": 1, "core": "scheduler", "service": "scheduler", "config": {...}}
    {"at": 1234.5, "event": {"_": "Tick"}, "effects": ["CallPrefill"], "digest": "90ab..."}     nothing, if none
    {"at": 1234.6, "event": {...}, "error": "refused: QUEUE_FULL"}                              or what a bug raised
    {"end": "why nothing follows"}                                                              only when cut off

Each line goes out at once: a process that is killed leaves all but its last one.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from common.errors import ConfigError
from common.story.codec import encode
from common.story.outcome import Outcome, outcome_of, outcome_of_error

log = logging.getLogger(__name__)

VERSION = 1
SUFFIX = ".story.jsonl"
MAX_STORY_BYTES = 128 * 2**20
"""A story ends here: it must start at a core's birth, so its first part cannot be given up for its last."""
MAX_STORIES = 16
"""Stories kept of one service, one for each of its latest lives."""

Event = TypeVar("Event")
Effect = TypeVar("Effect")


class Story(Protocol):
    """Where the events of one core are told, in the order in which it handled them. One caller at a time."""

    def recorded(self, handle: Callable[[Event, float], list[Effect]]) -> Callable[[Event, float], list[Effect]]:
        """The core's `handle`, which tells what it is given and what comes of it."""

    def close(self) -> None:
        """Nothing more will be told; idempotent."""


class _Untold:
    """The story of a core that nobody asked for: costs nothing."""

    def recorded(self, handle: Callable[[Event, float], list[Effect]]) -> Callable[[Event, float], list[Effect]]:
        return handle

    def close(self) -> None:
        """There is nothing to close."""


UNTOLD: Story = _Untold()


class StoryWriter:
    """A `Story` in a file. A file that cannot be written to any more ends the story, never the service."""

    def __init__(self, path: Path, *, core: str, service: str, config: Any, max_bytes: int = MAX_STORY_BYTES) -> None:
        """Start the file. Raises OSError."""
        self.path = path
        self._max_bytes = max_bytes
        self._bytes = 0
        # Prompts are nobody else's business.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file: BinaryIO | None = os.fdopen(descriptor, "wb", buffering=0)
        self._write({"story": VERSION, "core": core, "service": service, "config": encode(config)})

    def recorded(self, handle: Callable[[Event, float], list[Effect]]) -> Callable[[Event, float], list[Effect]]:
        """See `Story`. A bug is told like any outcome, before it ends the process."""

        def told(event: Event, now: float) -> list[Effect]:
            try:
                effects = handle(event, now)
            except BaseException as error:
                outcome = outcome_of_error(error)
                self._tell(event, now, outcome)
                if outcome.is_bug:
                    log.critical("the core failed; replay it with: sangam replay %s", self.path)
                raise
            self._tell(event, now, outcome_of(effects))
            return effects

        return told

    def close(self) -> None:
        """See `Story`."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _tell(self, event: Any, now: float, outcome: Outcome) -> None:
        if self._file is None:
            return
        line = {"at": now, "event": encode(event)}
        if outcome.error:
            line["error"] = outcome.error
        elif outcome.effects:
            line.update(effects=outcome.effects, digest=outcome.digest)
        self._write(line)
        if self._bytes > self._max_bytes:
            self._write({"end": f"the story reached its limit of {self._max_bytes} bytes"})
            self._stop(f"{self.path} has reached its limit of {self._max_bytes} bytes")

    def _write(self, line: dict[str, Any]) -> None:
        assert self._file is not None
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            self._bytes += self._file.write(data) or 0
        except OSError as error:
            self._stop(f"{self.path}: {error.strerror}")

    def _stop(self, why: str) -> None:
        log.warning("the story of this service ends: %s", why)
        self.close()


def open_story(folder: Path | None, *, core: str, service: str, config: Any) -> Story:
    """A fresh story of `service` (a name fit for people) in `folder`; None: none is written.

    Of earlier lives' stories the newest stay. Raises ConfigError when the folder cannot be written to.
    """
    if folder is None:
        return UNTOLD
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in service)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob(f"{name}.*{SUFFIX}"))[: 1 - MAX_STORIES]:
            old.unlink(missing_ok=True)
        born = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        path = folder / f"{name}.{born}.{os.getpid()}{SUFFIX}"
        story = StoryWriter(path, core=core, service=service, config=config)
    except OSError as error:
        raise ConfigError(f"--story-dir: {folder} cannot be written to: {error.strerror}") from None
    log.info("the core's story goes to %s", path)
    return story

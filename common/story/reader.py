"""Reads a story back, line by line: what `common.story.writer` writes. Nothing in a file is trusted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import ConfigError
from common.story.codec import Unreadable, decode
from common.story.cores import CORES, CoreKind
from common.story.outcome import Outcome
from common.story.writer import VERSION


class BadStory(ConfigError):
    """A file that is no story, or not one that this version can read; the text names file and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One event of a story: its number (from 1), when it happened (monotonic seconds), and what came of it then."""

    number: int
    at_s: float
    event: Any
    outcome: Outcome


class StoryReader:
    """An open story: its first line is read at once, the events as they are asked for."""

    def __init__(self, path: Path) -> None:
        """Raises `BadStory` when the file is no story or cannot be read."""
        self._path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise BadStory(f"{path}: {error.strerror}") from None
        self.bytes_total = path.stat().st_size
        self.bytes_read = 0
        self.is_cut_short = False
        self.end = ""
        try:
            self.kind, self.core, self.service, self.config = self._header()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def events(self) -> Iterator[Told]:
        """Every event in order. Raises `BadStory`; a last line without its end is left out (`is_cut_short`)."""
        number = 0
        while (line := self._line(number + 2)) is not None:
            if "end" in line:
                self.end = str(line["end"])
                return
            number += 1
            yield self._told(number, line)

    def _header(self) -> tuple[CoreKind, str, str, Any]:
        line = self._line(1)
        if line is None or "story" not in line:
            raise BadStory(f"{self._path} is no story: its first line says nothing of one")
        if line["story"] != VERSION:
            raise BadStory(f"{self._path} is a story of version {line['story']!r}; this program reads {VERSION}")
        kind = CORES.get(str(line.get("core")))
        if kind is None:
            raise BadStory(f"{self._path}, line 1: core must be one of {sorted(CORES)}, not {line.get('core')!r}")
        try:
            config = decode(kind.config, line.get("config"), "config")
        except Unreadable as error:
            raise BadStory(f"{self._path}, line 1: {error}") from None
        return kind, str(line["core"]), str(line.get("service", "")), config

    def _line(self, number: int) -> dict[str, Any] | None:
        raw = self._file.readline()
        self.bytes_read += len(raw)
        if not raw.endswith(b"\n"):
            self.is_cut_short = bool(raw)
            if raw and number == 1:
                raise BadStory(f"{self._path} is no story: its first line does not end")
            return None
        try:
            line = json.loads(raw)
        except ValueError:
            raise BadStory(f"{self._path}, line {number}: is not JSON") from None
        if not isinstance(line, dict):
            raise BadStory(f"{self._path}, line {number}: must be an object")
        return line

    def _told(self, number: int, line: dict[str, Any]) -> Told:
        where = f"{self._path}, line {number + 1}"
        try:
            return Told(
                number=number,
                at_s=decode(float, line.get("at"), "at"),
                event=decode(self.kind.event, line.get("event"), "event"),
                outcome=Outcome(
                    effects=decode(tuple[str, ...], line.get("effects", []), "effects"),
                    digest=decode(str, line.get("digest", ""), "digest"),
                    error=decode(str, line.get("error", ""), "error"),
                ),
            )
        except Unreadable as error:
            raise BadStory(f"{where}: {error}") from None

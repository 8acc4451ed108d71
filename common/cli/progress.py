"""How far a long command is, on stderr: nothing for two seconds, then a line rewritten, or one now and then."""

from __future__ import annotations

import sys
import time

AFTER_S = 2.0
LIVE_EVERY_S = 0.5
LINE_EVERY_S = 10.0
BAR_CHARACTERS = 24


class Progress:
    """`done` of `total` things, as a bar on a terminal; elsewhere (a log, a pipe) a plain line every ten seconds."""

    def __init__(self, total: int, unit: str) -> None:
        """`unit` names the things, plural."""
        self._total, self._unit = total, unit
        self._live = sys.stderr.isatty()
        self._next_s = time.monotonic() + AFTER_S
        self._open_line = False

    def __enter__(self) -> Progress:
        """Nothing is said yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the line, if one is open."""
        if self._open_line:
            print(file=sys.stderr)

    def show(self, done: int, note: str = "") -> None:
        """Say so, with a note on what is being done, unless something was said a moment ago."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + (LIVE_EVERY_S if self._live else LINE_EVERY_S)
        text = f"{done} of {self._total} {self._unit}" + (f", {note}" if note else "")
        if self._live:
            # To the end of the line: a shorter text must not leave the tail of a longer one.
            print(f"\r{self._bar(done)} {text}\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)
        self._open_line = self._live

    def _bar(self, done: int) -> str:
        filled = BAR_CHARACTERS * done // max(1, self._total)
        return f"[{'#' * filled:<{BAR_CHARACTERS}}]"

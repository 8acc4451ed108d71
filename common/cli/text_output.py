"""Generated text on a terminal or in a pipe."""

from __future__ import annotations

from typing import TextIO

_KEPT = "\n\t"
# Control characters become the pictures Unicode has for them: a model must not drive the reader's terminal.
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in _KEPT}
_PICTURES |= {0x7F: "␡"} | {code: "�" for code in range(0x80, 0xA0)}


class TextOutput:
    """Writes pieces of text at once; in a terminal control characters are made visible, in a pipe nothing changes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._at_line_start = True

    def write(self, text: str) -> None:
        """Show `text` now."""
        if not text:
            return
        self._at_line_start = text.endswith("\n")
        encoding = self._stream.encoding or "utf-8"
        shown = text.translate(_PICTURES) if self._is_terminal else text
        self._stream.write(shown.encode(encoding, "replace").decode(encoding))
        self._stream.flush()

    def end_line(self) -> None:
        """Begin a new line unless at the start of one."""
        if not self._at_line_start:
            self.write("\n")

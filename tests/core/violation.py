"""How an oracle objects."""

from __future__ import annotations


class Violation(AssertionError):
    """The core did something that no right scheduler does."""


def require(condition: bool, what: object) -> None:
    """Object unless the condition holds."""
    if not condition:
        raise Violation(str(what))

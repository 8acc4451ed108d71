"""What came of one event, in a form that two runs of a core can be compared by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import WireError
from common.story.cores import Handle

_REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The names of the effects in order and a hash over all they say; or the error that there was instead.

    `error` starts with "refused" for an event that the core may refuse, else it was a bug in the core.
    """

    effects: tuple[str, ...] = ()
    digest: str = ""
    error: str = ""

    @property
    def is_bug(self) -> bool:
        """Whether the core failed, rather than refused."""
        return bool(self.error) and not self.error.startswith(_REFUSED)

    def __str__(self) -> str:
        """In words, for a person."""
        return self.error or (f"{', '.join(self.effects)} ({self.digest})" if self.effects else "nothing")


NOTHING = Outcome()


def outcome_of(effects: Sequence[Any]) -> Outcome:
    """Of what `handle` returned. An effect's repr says all of it, and the same on every machine."""
    if not effects:
        return NOTHING
    names = tuple(type(effect).__name__ for effect in effects)
    return Outcome(effects=names, digest=hashlib.blake2b(repr(effects).encode(), digest_size=8).hexdigest())


def outcome_of_error(error: BaseException) -> Outcome:
    """Of what `handle` raised."""
    if isinstance(error, WireError):
        return Outcome(error=f"{_REFUSED}: {error.reason.value}")
    return Outcome(error=f"raised {type(error).__name__}: {error}")


def attempt(handle: Handle, event: Any, now: float) -> tuple[Outcome, Sequence[Any]]:
    """Let a core handle an event, whatever comes of it: the outcome, and the effects themselves."""
    try:
        effects = handle(event, now)
    except Exception as error:
        return outcome_of_error(error), ()
    return outcome_of(list(effects)), effects

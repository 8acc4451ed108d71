"""What has been there for a while, and what of it is news: for notices that are given once, and not too early."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Lasting(Generic[Key]):
    """Follows things from look to look. One that is missing once begins anew when it is there again."""

    def __init__(self, *, after_s: float) -> None:
        """Things have lasted when they were there at every look for `after_s` seconds."""
        self._after_s = after_s
        self._since_s: dict[Key, float] = {}
        self._told: set[Key] = set()

    def look(self, there: Iterable[Key], now_s: float) -> list[Key]:
        """All that is `there` at `now_s`; returns what has lasted and was not returned before, in the order given."""
        self._since_s = {key: self._since_s.get(key, now_s) for key in there}
        lasting = [key for key, since_s in self._since_s.items() if now_s - since_s >= self._after_s]
        news = [key for key in lasting if key not in self._told]
        self._told = set(lasting)
        return news

    @property
    def lasting(self) -> Collection[Key]:
        """Everything that had lasted at the last look."""
        return self._told

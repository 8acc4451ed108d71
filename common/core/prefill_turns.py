"""Which prefills a prefill worker runs now or in its next forward, as far as that can be told from outside."""

from __future__ import annotations

from common.core.ids import CallId


class PrefillTurns:
    """Outstanding prefills of one worker, in order. It packs them into a forward in that order while they fit
    `batch_tokens`, the first always (`admit_prefill_batch`); so those within one batch of the head are near.

    O(1) per prefill, amortised.
    """

    def __init__(self, batch_tokens: int) -> None:
        self._batch_tokens = batch_tokens
        self._far: dict[CallId, int] = {}
        self._near: dict[CallId, int] = {}
        self._near_tokens = 0

    def add(self, call_id: CallId, canvas_tokens: int) -> None:
        """A prefill was given to the worker."""
        self._far[call_id] = canvas_tokens

    def discard(self, call_id: CallId) -> None:
        """That prefill has ended."""
        self._far.pop(call_id, None)
        self._near_tokens -= self._near.pop(call_id, 0)

    def come_near(self) -> list[CallId]:
        """Those that have come near since the last time, in order."""
        came: list[CallId] = []
        while self._far:
            call_id, tokens = next(iter(self._far.items()))
            if self._near and self._near_tokens + tokens > self._batch_tokens:
                break
            self._near[call_id] = self._far.pop(call_id)
            self._near_tokens += tokens
            came.append(call_id)
        return came

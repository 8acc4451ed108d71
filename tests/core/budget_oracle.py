"""Algorithm 1 with the minimum share, written a second time from its rules, as a judge of one iteration at a time."""

from __future__ import annotations


class BudgetOracle:
    """Judges iterations; `deficit` and `credit` are D and F after the newest one, in tokens."""

    def __init__(self, tau: int) -> None:
        self.retune(tau)
        self.deficit = 0
        self.credit = 0

    def retune(self, tau: int) -> None:
        """The budget of the next iteration."""
        self.tau = tau
        self.share = max(1, tau // 8)

    def judge(self, decode_tokens: int, admitted: list[int], head: int | None, head_has_pages: bool) -> None:
        """Assert that exactly `admitted` (canvases) may go; `head` is the canvas of the next in line, if any."""
        b = self.tau - decode_tokens
        r = b + self.deficit
        p = 0
        for canvas in admitted:
            assert p + canvas <= r or (p == 0 and self._may_go_first(decode_tokens, canvas)), "past the budget"
            p += canvas
        if head is None:
            self.deficit = min(self.tau, max(0, r - p)) if admitted else 0
            self.credit = 0
        elif p + head <= r or (p == 0 and self._may_go_first(decode_tokens, head)):
            assert not head_has_pages, "the head fits and has pages, but was not admitted"
            self.deficit = max(0, self.deficit - max(0, p - b))
            self.credit = 0 if admitted else self.credit
        else:
            self.deficit = max(0, r - p)
            self.credit = 0 if admitted else self.credit + self.share

    def idle(self) -> None:
        """Nothing runs and nothing waits: neither outlives that."""
        self.deficit = self.credit = 0

    def _may_go_first(self, decode_tokens: int, canvas: int) -> bool:
        return decode_tokens == 0 or canvas <= self.credit

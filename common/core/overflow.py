"""Overflow of prefills onto decode workers (Algorithm 2; reference notes, algorithms, section 4). Pure.

A prefill overflows when every prefill worker is at or over the threshold θ, or has no pages for it. It goes to the
decode worker under θ with the fewest outstanding prefill tokens, unless memory must be held back.
"""

from __future__ import annotations


def must_hold_back(*, free_tokens: int, backlog_tokens: int, need_tokens: int) -> bool:
    """Whether finished prefills that wait for decode memory need the pages that an overflow would take.

    All three are page-rounded tokens over all decode workers (free pages, canvases that wait, this canvas), so that
    workers with different page sizes add up.
    """
    return free_tokens - backlog_tokens < need_tokens

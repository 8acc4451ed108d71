"""What a service holds although nobody owns it: empty, unless there is a bug."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Holding(enum.Enum):
    """What may be held: KV pages (or reservations of them), requests and calls, K/V under lease."""

    PAGES = "pages"
    REQUESTS = "requests"
    LEASES = "leases"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unowned:
    """`count` of a kind under one name, such as the pages of a block that is gone. The name is for the log."""

    holding: Holding
    name: str
    count: int = 1

"""Looks through a registry in Redis for leases that are held for nobody: none, unless there is a bug.

Redis ends leases by itself, so what may go wrong is an entry without one, or one that a fence, a newer life or its
owner's reconciliation did not find.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from common.core.unowned import Holding, Unowned
from common.errors import WireError

if TYPE_CHECKING:
    from services.kv_store.redis_store import RedisStore

KEYS_PER_LOOK = 1000
"""How many keys one look goes through; Redis serves nobody else meanwhile, for about a millisecond."""

MAX_FOUND = 1000
"""How many findings are kept and looked at again; the gauge shows no more."""


class LeaseAudit:
    """One part after the other, round after round; what was found is looked at anew each time. Event loop only."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._cursor = 0
        self._found: dict[str, str] = {}

    async def look(self) -> None:
        """Look at the next part; without an answer of Redis, `forget`."""
        try:
            cursor, names = await self._store.some_entries(self._cursor, keys=KEYS_PER_LOOK)
            found = await self._store.unowned(list(dict.fromkeys((*self._found, *names))))
        except WireError:
            self.forget()
            return
        self._cursor, self._found = cursor, dict(itertools.islice(found.items(), MAX_FOUND))

    def forget(self) -> None:
        """Nothing is known, and nothing counts as found: Redis does not answer, or is another one when it does."""
        self._cursor, self._found = 0, {}

    def unowned(self) -> Sequence[Unowned]:
        """What the last look found."""
        return [Unowned(holding=Holding.LEASES, name=f"entry of {name}, {why}") for name, why in self._found.items()]

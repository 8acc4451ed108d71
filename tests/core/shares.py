"""What fair sharing between tenants must come to, judged from outside: tokens placed while both wait."""

from __future__ import annotations

from itertools import combinations

from common.core.scheduler_config import SchedulerConfig
from tests.core.violation import require


class Shares:
    """For each pair of tenants, tokens per unit of weight since both began to wait without a break."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._placed: dict[tuple[str, str], dict[str, float]] = {}
        self._largest = 0

    def place(self, tenant: str, canvas: int) -> None:
        """A block of `tenant` was placed."""
        self._largest = max(self._largest, canvas)
        for pair, account in self._placed.items():
            if tenant in pair:
                account[tenant] += canvas / self._config.tenant_weights.get(tenant, 1)
            first, second = account.values()
            # Deficit round robin: each side is ahead of its due by less than a quantum and a largest canvas.
            slack = 2 * (self._config.tenant_quantum_tokens + self._largest)
            require(abs(first - second) <= slack, f"{pair} placed {account}")

    def waiting(self, tenants: set[str]) -> None:
        """These have something waiting now: whoever has not starts anew."""
        pairs = combinations(sorted(tenants), 2)
        self._placed = {pair: self._placed.get(pair) or dict.fromkeys(pair, 0.0) for pair in pairs}

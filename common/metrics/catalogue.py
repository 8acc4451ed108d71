"""Every instrument of every service. docs/metrics.md explains them; a test compares the two lists.

Names: `sangam_`, what is measured, its unit last (`_total` ends a counter).
"""

from __future__ import annotations

from common.metrics.instruments import Counter, Gauge, Instrument

LEAKED_PAGES = Gauge("sangam_leaked_pages", "KV pages, or reservations of them, held for nobody")
LEAKED_REQUESTS = Gauge("sangam_leaked_requests", "Requests, calls or places held for nobody")
LEAKED_LEASES = Gauge("sangam_leaked_leases", "K/V kept, or counted as kept, past its lease or for nobody")
CONSERVATION_BROKEN = Gauge("sangam_conservation_broken", "1 while the books of an idle service do not add up")
REPLAY_DIVERGENCE = Counter(
    "sangam_replay_divergence_total", "Tokens revealed again that differed from those already shown (which stay)"
)


def instruments() -> dict[str, Instrument]:
    """All of them by name."""
    found = [value for value in globals().values() if isinstance(value, Counter | Gauge)]
    return {instrument.about.name: instrument for instrument in found}

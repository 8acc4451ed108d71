"""Small simulated runs for the tests."""

from __future__ import annotations

from common.sim.cluster import SimCluster, SimResult
from common.sim.options import build_run
from common.sim.settings import Settings

SMALL = {"prompt-tokens": "lognormal:300:900", "output-tokens": "lognormal:100:400", "qps": "8", "requests": "30"}


def simulate(**options: object) -> SimResult:
    """Run with `SMALL` and these options (underscores for dashes)."""
    values = {**SMALL, **{name.replace("_", "-"): str(value) for name, value in options.items()}}
    planned = build_run(Settings(values))
    return SimCluster(planned.config, planned.requests).run()

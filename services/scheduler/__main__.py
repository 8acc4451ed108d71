"""`python -m services.scheduler`: see `--help` for its settings."""

from __future__ import annotations

from common.config import SchedulerServiceConfig
from common.rpc.service import run_service
from services.scheduler.service import serve

if __name__ == "__main__":
    run_service("scheduler", SchedulerServiceConfig, serve)

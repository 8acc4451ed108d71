"""Entry point: `python -m services.decode_worker`."""

from __future__ import annotations

from common.core.ids import Role
from common.worker.main import run_worker

if __name__ == "__main__":
    run_worker(Role.DECODE)

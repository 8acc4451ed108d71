"""A decode worker whose forwards never end, as a process: `python -m tests.worker.hanging_worker [flags]`."""

from __future__ import annotations

import threading
from typing import Any

from common.core.ids import Role
from common.engine.engine import Engine
from common.worker.main import run_worker


def hang(*_: Any, **__: Any) -> Any:
    """A forward that a broken kernel holds for ever."""
    threading.Event().wait()


if __name__ == "__main__":
    Engine.step = hang  # type: ignore[method-assign]  # the one thing wrong with this worker
    run_worker(Role.DECODE)

"""The outer shell of every `python -m services.X`: settings, logs, telemetry, signals, exit codes, the ready file."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from common.config import ConfigT, exit_for_user_error, load_config
from common.errors import CheckpointError, ConfigError
from common.missing_package import missing_package
from common.rpc.server import run_until_signal
from common.telemetry import setup_logging, setup_telemetry, shutdown_telemetry


def run_service(
    name: str,
    config_class: type[ConfigT],
    main: Callable[[ConfigT, asyncio.Event], Awaitable[None]],
    argv: Sequence[str] | None = None,
) -> None:
    """Load the settings of service `name` ("kv_store") and run `main(config, stop)` until it returns.

    `main` serves until `stop` is set (SIGTERM, SIGINT) and then winds down. ConfigError and CheckpointError, raised
    by it or by the settings, and a package of an extra that is not installed, end the process with one line on stderr
    and code 2; a bug ends it with a traceback.
    """
    prog = f"sangam {name}"
    try:
        config = load_config(config_class, sys.argv[1:] if argv is None else argv, prog)
        setup_logging(config.log_level)
        setup_telemetry(name, config.otlp_endpoint)
        # What the imports left stays: a full collection over it would stop every call for tens of milliseconds.
        gc.collect()
        gc.freeze()
        run_until_signal(lambda stop: main(config, stop))
    except (ConfigError, CheckpointError) as error:
        exit_for_user_error(prog, error)
    except ModuleNotFoundError as error:  # torch and redis are imported when they are needed
        exit_for_user_error(prog, missing_package(error, name))
    except ExceptionGroup as group:  # a mistake found inside a task group
        mistakes, bugs = group.split((ConfigError, CheckpointError))
        if mistakes is None or bugs is not None:
            raise
        exit_for_user_error(prog, _first_of(mistakes))
    finally:
        shutdown_telemetry()


@contextlib.contextmanager
def missing_packages_told(name: str) -> Iterator[None]:
    """Around the imports of service `name` that take an extra: one that is not installed ends the process with one line
    on stderr and code 2, as in `run_service`."""
    try:
        yield
    except ModuleNotFoundError as error:
        exit_for_user_error(f"sangam {name}", missing_package(error, name))


def _first_of(group: ExceptionGroup[Exception]) -> Exception:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, ExceptionGroup) else first


def write_ready_file(
    path: Path | None, *, service: str, address: str, worker_id: str | None = None, incarnation: int | None = None
) -> None:
    """Say in `path` (None: nowhere) that the service serves at `address`; readers see all of it or nothing.

    The file holds one JSON object: service, address, pid, and for workers worker_id and incarnation.
    Raises ConfigError when it cannot be written.
    """
    if path is None:
        return
    facts: dict[str, str | int] = {"service": service, "address": address, "pid": os.getpid()}
    if worker_id is not None:
        facts["worker_id"] = worker_id
    if incarnation is not None:
        facts["incarnation"] = incarnation
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"--ready-file: cannot write {path}: {error.strerror}") from None

"""`sangam COMMAND ...`: finds the command's module, parses, runs, and turns failures into one line and an exit code.

A command module has `add_arguments(parser)` and `run(args) -> int`; only the one that is asked for is imported. Exit
codes: 0 done, 1 failed, 2 the user's mistake, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from common.errors import CheckpointError, ConfigError, Reason, SangamError, WireError
from common.missing_package import missing_package

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("common.cli.up", "start a cluster on this machine and supervise it"),
    "generate": ("common.cli.generate", "generate text for one prompt"),
    "status": ("common.cli.status", "show workers and queues of a running cluster"),
    "simulate": ("common.cli.simulate", "run a cluster in virtual time, with a cost model for the GPUs"),
    "replay": ("common.cli.replay", "run a recorded story of a service's core again and compare"),
    "drain": ("common.cli.drain", "give a worker no new work and let it finish"),
    "eval": ("common.cli.eval", "score a model on held-out questions, and show what caching costs"),
    "rolling-restart": (
        "common.cli.rolling_restart",
        "restart the services of a running cluster, one by one",
    ),
    "demo": ("common.cli.demo", "start a cluster, ask it questions, show answers and what they cost, stop it"),
    "bench-kv": ("common.bench.kv", "compare the K/V data plane with raw sockets, UCXX and memcpy"),
    "bench-overhead": ("common.bench.overhead", "compare the services with the engine in process"),
}
_USER_ERRORS = frozenset({Reason.INVALID_PROMPT, Reason.TOO_LONG, Reason.BAD_SAMPLING_PARAMS, Reason.INVALID_REQUEST})


class OneLineParser(argparse.ArgumentParser):
    """argparse whose complaints take one line."""

    def error(self, message: str) -> NoReturn:
        """Print the complaint on stderr and leave with `EXIT_USER_ERROR`."""
        self.exit(EXIT_USER_ERROR, f"{self.prog}: error: {' '.join(message.split())}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process' own); returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in COMMANDS:
        parser = _root_parser()
        parser.parse_args(words)
        parser.error("the first word must be a command")
    prog = f"sangam {words[0]}"
    try:
        return _run(importlib.import_module(COMMANDS[words[0]][0]), prog, words[1:])
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left: nobody to tell.
        _drop_output()
        return EXIT_FAILED
    except OSError as error:
        about = f"{error.filename}: " if error.filename else ""
        print(f"{prog}: error: {about}{error.strerror or error}", file=sys.stderr)
        _drop_output()
        return EXIT_FAILED
    except ModuleNotFoundError as error:
        return _told(prog, missing_package(error))
    except SangamError as error:
        return _told(prog, error)


def _told(prog: str, error: SangamError) -> int:
    print(f"{prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
    return exit_code_for(error)


def exit_code_for(error: SangamError) -> int:
    """`EXIT_USER_ERROR` for what the user got wrong, `EXIT_FAILED` for what failed."""
    if isinstance(error, WireError):
        return EXIT_USER_ERROR if error.reason in _USER_ERRORS else EXIT_FAILED
    return EXIT_USER_ERROR if isinstance(error, ConfigError | CheckpointError) else EXIT_FAILED


def _drop_output() -> None:
    """What stdout still holds cannot be written: the interpreter must not try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(module: ModuleType, prog: str, words: Sequence[str]) -> int:
    parser = OneLineParser(prog=prog, description=module.__doc__, allow_abbrev=False)
    module.add_arguments(parser)
    code: int = module.run(parser.parse_args(words))
    return code


def _root_parser() -> OneLineParser:
    """Names the commands; never imports them."""
    parser = OneLineParser(prog="sangam", description="Serve diffusion language models.", allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (_, purpose) in COMMANDS.items():
        commands.add_parser(name, help=purpose)
    return parser

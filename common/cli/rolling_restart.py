"""Restart the services of a running cluster one after the other, while it goes on serving.

Each is told to stop, finishes or hands over what it has (see `--drain-s` of `sangam up`), and is back before the next
one's turn. The gateway's next life serves before the last one is told. A request that runs through the gateway has the
gateway's time to end; clients that ask again with their request_id go on where they were.
"""

from __future__ import annotations

import argparse
import time

from common.cli.arguments import folder
from common.cli.restart_orders import DONE, FAILED, leave_order
from common.cli.run_dir import find_run_dir, read_cluster_file
from common.errors import SangamError

POLL_INTERVAL_S = 0.1


class RestartFailed(SangamError):
    """A service did not come back, or there is none of that name; the services after it were left alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `sangam rolling-restart`."""
    parser.add_argument("services", nargs="*", metavar="SERVICE", help="names as `sangam up` shows them (default: all)")
    parser.add_argument(
        "--run-dir", type=folder, metavar="DIR", help="folder of the cluster (default: your only one's)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns 0 once all are back. Raises NoCluster or RestartFailed."""
    run_dir = find_run_dir(args.run_dir)
    log = leave_order(run_dir, args.services)
    shown = 0
    while True:
        lines = log.read_text(encoding="utf-8").splitlines()
        for line in lines[shown:]:
            if line == DONE:
                return 0
            if line.startswith(FAILED):
                raise RestartFailed(line.removeprefix(FAILED))
            print(line, flush=True)
        shown = len(lines)
        if read_cluster_file(run_dir) is None:
            raise RestartFailed("the cluster has ended meanwhile")
        time.sleep(POLL_INTERVAL_S)

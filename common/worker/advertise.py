"""The host name by which peers reach this worker."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from common.errors import ConfigError

WILDCARD_HOSTS = ("", "0.0.0.0", "::")


def advertised_host(*, advertise_host: str, listen_host: str, scheduler_addresses: Sequence[str]) -> str:
    """What to register: the configured name, else the one interface listened on, else the one facing the schedulers.

    A worker that listens everywhere asks the kernel which of its addresses routes to the first of `scheduler_addresses`
    that can be found: a machine that is down may have no name (no packet is sent). Registering "localhost" by default
    would work on one machine and strand every other.

    Raises ConfigError when none of the addresses can be resolved and routed to.
    """
    if advertise_host:
        return advertise_host
    if listen_host not in WILDCARD_HOSTS:
        return listen_host
    problems = []
    for address in scheduler_addresses:
        try:
            return _routing_host(address)
        except (OSError, UnicodeError) as error:
            problems.append(f"no route to {address} ({error})")
    raise ConfigError(f"--scheduler-address: {', '.join(problems)}; --advertise-host may name this worker instead")


def _routing_host(address: str) -> str:
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    family, kind, protocol, _, target = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])

"""The host name by which peers reach this worker."""

from __future__ import annotations

import socket

from common.errors import ConfigError

WILDCARD_HOSTS = ("", "0.0.0.0", "::")


def advertised_host(*, advertise_host: str, listen_host: str, scheduler_address: str) -> str:
    """What to register: the configured name, else the one interface listened on, else the one facing the scheduler.

    A worker that listens everywhere asks the kernel which of its addresses routes to `scheduler_address` (no packet
    is sent). Registering "localhost" by default would work on one machine and strand every other.

    Raises ConfigError when the scheduler's address cannot be resolved or routed to.
    """
    if advertise_host:
        return advertise_host
    if listen_host not in WILDCARD_HOSTS:
        return listen_host
    return _routing_host(scheduler_address)


def _routing_host(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
        family, kind, protocol, _, target = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError) as error:
        problem = f"no route to {address} ({error}); --advertise-host may name this worker instead"
        raise ConfigError(f"--scheduler-address: {problem}") from None

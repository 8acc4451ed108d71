"""The address by which others reach this service."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from common.errors import ConfigError

WILDCARD_HOSTS = ("", "0.0.0.0", "::")


def advertised_address(
    bound: str, *, advertise_host: str, listen_host: str, towards: Sequence[str], option: str
) -> str:
    """What to call oneself: the port of `bound` at the configured name, else at the one interface listened on, else at
    the one facing `towards`, the addresses that `option` has given.

    A service that listens everywhere asks the kernel which of its addresses routes to the first of `towards` that can
    be found: a machine that is down may have no name (no packet is sent). "localhost" by default would work on one
    machine and strand every other.

    Raises ConfigError when none of the addresses can be resolved and routed to.
    """
    host = advertise_host or (listen_host if listen_host not in WILDCARD_HOSTS else _host_towards(towards, option))
    port = bound.rpartition(":")[2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host_towards(addresses: Sequence[str], option: str) -> str:
    problems = []
    for address in addresses:
        try:
            return _routing_host(address)
        except (OSError, UnicodeError) as error:
            problems.append(f"no route to {address} ({error})")
    raise ConfigError(f"{option}: {', '.join(problems)}; --advertise-host may name this service instead")


def _routing_host(address: str) -> str:
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    family, kind, protocol, _, target = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])

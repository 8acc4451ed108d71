"""What a service calls itself so that others can reach it."""

from __future__ import annotations

import pytest

from common.errors import ConfigError
from common.rpc.advertise import advertised_address

# A label of more than 63 characters is refused before any name server is asked.
NOWHERE = "a" * 64


def advertised(*, given: str = "", listen: str = "0.0.0.0", towards: list[str]) -> str:
    """What a service calls itself whose settings are these, and which is bound to port 7."""
    return advertised_address(
        f"{listen}:7", advertise_host=given, listen_host=listen, towards=towards, option="--scheduler-address"
    )


@pytest.mark.parametrize(
    ("given", "listen", "expected"),
    [
        ("worker-3.pods", "0.0.0.0", "worker-3.pods:7"),
        ("fd00::3", "0.0.0.0", "[fd00::3]:7"),
        ("", "10.1.2.3", "10.1.2.3:7"),
        ("", "0.0.0.0", "127.0.0.1:7"),
        ("", "::", "127.0.0.1:7"),
    ],
)
def test_the_advertised_address_is_one_that_others_can_reach(given: str, listen: str, expected: str) -> None:
    # The others are on loopback, so loopback is the interface that routes to them.
    assert advertised(given=given, listen=listen, towards=["127.0.0.1:50052"]) == expected


def test_addresses_that_cannot_be_resolved_are_named() -> None:
    two = [f"{NOWHERE}:50052", f"{NOWHERE}:50053"]
    with pytest.raises(ConfigError, match=f"--scheduler-address: no route to {two[0]} .*, no route to {two[1]} "):
        advertised(towards=two)


def test_one_of_several_addresses_may_have_no_name() -> None:
    assert advertised(towards=[f"{NOWHERE}:50052", "127.0.0.1:50052"]) == "127.0.0.1:7"

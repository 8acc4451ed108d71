"""Transports are made by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from common.errors import ConfigError
from common.transport.factory import TRANSPORT_NAMES, make_transport


@pytest.mark.parametrize("name", TRANSPORT_NAMES)
async def test_names_are_the_transports_own(name: str) -> None:
    transport = make_transport(name)
    assert transport.name == name
    await transport.aclose()


async def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"kv_transport.*'pigeon'.*tcp"):
        make_transport("pigeon")


def test_the_data_plane_needs_no_torch() -> None:
    program = "import sys, common.transport.factory; sys.exit('torch' in sys.modules or 'grpc' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})

"""UCX between processes that find each other's shared memory and may not open it: networks carry, or it is said."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from common.errors import Reason, WireError
from common.transport.process_memory import Standing, this_standing
from common.transport.ucx import UcxTransport
from tests.transport import test_transport_processes as processes
from tests.transport.doubles import PATIENCE_S, MemoryProvider, handle_for, random_layers
from tests.transport.test_direct_faults import closing
from tests.transport.test_ucx_direct import LAYER_BYTES, LAYERS, CountingSink

_here = this_standing()
assert _here is not None
HERE: Standing = _here
APART = Standing(segments=HERE.segments, rights="others")
ELSEWHERE = Standing(segments="others", rights="others")

PEER = str(Path(__file__).with_name("peer_process.py"))
AS_IT_IS = """
import asyncio, sys
from tests.transport.peer_process import main
asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
"""
NEW_PID_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
IN_ANOTHER_PID_NAMESPACE = (
    f"import os, sys; os.execvp('unshare', [*{NEW_PID_NAMESPACE!r}, sys.executable, {PEER!r}, *sys.argv[1:]])"
)
AS_ANOTHER_USER = """
import asyncio, os, sys
from common.transport.ucx_runtime import UcxRuntime
from tests.transport.peer_process import main

async def import_all():
    await UcxRuntime().close()

asyncio.run(import_all())  # that user may not read where it lies
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
"""


def owners() -> dict[str, str]:
    """Programs that run an owner, of the kinds that whoever runs these tests may start."""
    may = {"as it is": AS_IT_IS}
    if os.geteuid() == 0:
        may["another user"] = AS_ANOTHER_USER
    if shutil.which("unshare") and not subprocess.run([*NEW_PID_NAMESPACE, "true"], capture_output=True).returncode:
        may["another PID namespace"] = IN_ANOTHER_PID_NAMESPACE
    return may


@pytest.mark.parametrize("in_long_runs", [True, False], ids=["long runs", "pieces"])
@pytest.mark.parametrize("program", owners().values(), ids=owners())
async def test_pages_come_from_an_owner_wherever_it_is(program: str, in_long_runs: bool) -> None:
    words = ("-c", program, "ucx", str(LAYERS), str(LAYER_BYTES), "0", "0")
    async with processes.process(*words) as (_, address), processes.transport("ucx") as reader:
        for _ in range(2):
            sink = CountingSink()
            sink.in_long_runs = in_long_runs
            await reader.fetch(handle=handle_for(address), sink=sink, timeout_s=PATIENCE_S)
            assert sink.content == random_layers(LAYERS, LAYER_BYTES)


@pytest.mark.parametrize(
    ("standing", "taken_layers"),
    [(HERE, LAYERS), (APART, 0), (ELSEWHERE, LAYERS)],
    ids=["one standing", "apart", "elsewhere"],
)
async def test_who_may_not_share_memory_is_sent_everything(standing: Standing, taken_layers: int) -> None:
    """Of who finds other segments UCX hears by itself that it shares none, so it is left alone."""
    owner, reader, provider = UcxTransport(), UcxTransport(standing=standing), MemoryProvider()
    data = random_layers(LAYERS, LAYER_BYTES)
    lease, sink = provider.lend(data), CountingSink()
    sink.in_long_runs = True
    async with closing(reader, owner):
        address = await owner.listen("127.0.0.1", provider)
        await reader.fetch(handle=handle_for(address, transport="ucx"), sink=sink, timeout_s=PATIENCE_S)
        assert await lease.until_closed() == [True]
    assert (sink.content, sink.taken_layers) == (data, taken_layers)


@pytest.mark.parametrize("where", ["owner", "reader"])
async def test_without_a_network_the_reader_is_told_what_to_set(where: str) -> None:
    owner = UcxTransport(carriers="sm,self" if where == "owner" else "all")
    reader = UcxTransport(carriers="sm,self" if where == "reader" else "all", standing=APART)
    async with closing(reader, owner):
        address = await owner.listen("127.0.0.1", MemoryProvider())
        with pytest.raises(WireError, match=r"users or PID namespaces.*UCX_TLS.*--kv-transport auto or tcp") as caught:
            await reader.fetch(handle=handle_for(address, transport="ucx"), sink=CountingSink(), timeout_s=PATIENCE_S)
    assert caught.value.reason is Reason.LAYOUT_MISMATCH


def test_standings_are_apart_only_where_the_same_segments_are_found() -> None:
    assert HERE.barred_from(APART) and APART.barred_from(HERE)
    assert not HERE.barred_from(HERE) and not HERE.barred_from(ELSEWHERE)

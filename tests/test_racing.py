"""`race` and `CutShort` leave nothing running, whoever wins and whoever gives up."""

from __future__ import annotations

import asyncio

import pytest

from common.racing import CutShort, race


class Runner:
    """A contender that ends only when told, and says when it is really over."""

    def __init__(self) -> None:
        self.running = False

    async def run(self, cleanup_turns: int = 0) -> str:
        self.running = True
        try:
            await asyncio.Event().wait()
            return "never"
        finally:
            for _ in range(cleanup_turns):
                await asyncio.sleep(0)
            self.running = False


async def value(result: str, turns: int = 0) -> str:
    for _ in range(turns):
        await asyncio.sleep(0)
    return result


async def failing() -> str:
    raise ValueError("lost")


async def test_first_wins_and_the_rest_has_ended() -> None:
    slow = Runner()
    assert await race(value("a", turns=3), slow.run(cleanup_turns=5)) == "a"
    assert not slow.running


async def test_ties_go_to_the_earlier() -> None:
    assert await race(value("a"), value("b")) == "a"
    assert await race(value("a"), failing()) == "a"


async def test_the_first_to_raise_raises() -> None:
    slow = Runner()
    with pytest.raises(ValueError, match="lost"):
        await race(slow.run(), failing())
    assert not slow.running


@pytest.mark.parametrize("cancels", [1, 3])
async def test_cancelling_outlives_slow_cleanups(cancels: int) -> None:
    slow = Runner()
    racing = asyncio.create_task(race(slow.run(cleanup_turns=8)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for _ in range(cancels):
        racing.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await racing
    assert not slow.running


async def test_a_signal_ends_the_block_with_its_exception() -> None:
    slow, signal = Runner(), asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(signal.set_result, ValueError("told"))
    with pytest.raises(ValueError, match="told"):
        async with CutShort(asyncio.get_running_loop().create_future(), signal):
            await slow.run(cleanup_turns=5)
    assert not slow.running
    await asyncio.sleep(0)  # and no cancellation is left over


async def test_a_block_that_ends_by_itself_hears_no_signal() -> None:
    signal: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    async with CutShort(signal):
        assert await value("a", turns=2) == "a"
    signal.set_result(ValueError("late"))
    await asyncio.sleep(0)
    with pytest.raises(KeyError):
        async with CutShort(asyncio.get_running_loop().create_future()):
            raise KeyError("its own")


async def test_a_cancellation_beats_the_signal_that_comes_with_it() -> None:
    signal: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def block() -> None:
        async with CutShort(signal):
            await asyncio.Event().wait()

    blocked = asyncio.create_task(block())
    await asyncio.sleep(0)
    signal.set_result(ValueError("told"))
    blocked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await blocked


async def test_an_inner_and_an_outer_signal_at_once_are_the_outers() -> None:
    loop = asyncio.get_running_loop()
    outer, inner = loop.create_future(), loop.create_future()
    loop.call_soon(inner.set_result, ValueError("inner"))
    loop.call_soon(outer.set_result, ValueError("outer"))
    with pytest.raises(ValueError, match="outer"):
        async with CutShort(outer), CutShort(inner):
            await asyncio.Event().wait()

"""`race` leaves nothing running, whoever wins and whoever gives up."""

from __future__ import annotations

import asyncio

import pytest

from common.racing import race


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

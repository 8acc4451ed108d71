"""Clocks, real and manual."""

from __future__ import annotations

import asyncio

import pytest

from common.clock import ManualClock, MonotonicClock


async def test_real_clock_moves_by_what_it_sleeps():
    clock = MonotonicClock()
    before = clock.now()
    await clock.sleep(0.02)
    assert clock.now() - before >= 0.02


async def test_manual_clock_wakes_sleepers_when_due_and_not_before():
    clock, woken = ManualClock(start_s=100.0), []

    async def sleeper(duration_s: float) -> None:
        await clock.sleep(duration_s)
        woken.append((duration_s, clock.now()))

    async with asyncio.TaskGroup() as tasks:
        for duration_s in (2.0, 1.0, 0.0):
            tasks.create_task(sleeper(duration_s))
        for _ in range(3):
            await asyncio.sleep(0)
        assert woken == [(0.0, 100.0)]
        clock.advance(0.999)
        await asyncio.sleep(0)
        assert len(woken) == 1
        clock.advance(0.001)
        await asyncio.sleep(0)
        assert woken[1:] == [(1.0, 101.0)]
        clock.advance(50)
    assert woken[2:] == [(2.0, 151.0)]


async def test_a_cancelled_sleeper_is_forgotten():
    clock = ManualClock()
    sleeping = asyncio.ensure_future(clock.sleep(1))
    await asyncio.sleep(0)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    clock.advance(2)
    assert clock.now() == 2

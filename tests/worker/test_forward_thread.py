"""What the forward thread says of a prefill's layers while it computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from common.core.ids import BlockAttempt, RequestId
from common.core.worker_effects import OpenBlock, RunIteration
from common.core.worker_events import IterationCompleted
from common.engine.engine import StepResult
from common.worker import forward_thread
from common.worker.forward_thread import ForwardJob, ForwardThread
from tests.engine.runs import request
from tests.worker.harness import block_work
from tests.worker.waiting import eventually

LAYERS = 4
WORK = block_work(request(request_id=RequestId("a"), max_tokens=32))
JOB = ForwardJob(
    changes=(OpenBlock(work=WORK, page_ids=(0, 1, 2, 3), first=None),),
    run=RunIteration(iteration=1, decodes=(), prefills=(WORK.attempt,)),
)


class LayeredEngine:
    """Computes nothing, layer by layer."""

    def open_block(self, **given: Any) -> Any:
        return given

    def step(self, items: Sequence[Any], *, on_layer: Callable[[int], None] | None = None) -> list[StepResult]:
        assert on_layer is not None
        for layer in range(LAYERS):
            on_layer(layer)
        return [StepResult(step=0, is_prefill=True, positions=(0,), tokens=(7,), confidences=(0.5,)) for _ in items]


async def layers_told(*, fence: object | None, wanted: Callable[[], bool] = lambda: True) -> list[int]:
    """The layers that the event loop hears of in the course of one prefill."""
    told: list[int] = []
    ended: list[IterationCompleted] = []

    def on_layer(attempts: Sequence[BlockAttempt], layer: int, reached: object | None) -> None:
        assert tuple(attempts) == (WORK.attempt,) and reached is fence
        told.append(layer)

    failed: list[BaseException] = []
    thread = ForwardThread(
        LayeredEngine(),
        complete=ended.append,
        on_failed=failed.append,
        fence=lambda: fence,  # type: ignore[arg-type, return-value]  # any mark will do
        on_layer=on_layer,
        wants_layers=wanted,
    )
    thread.start()
    thread.submit(JOB)
    await eventually(lambda: bool(ended or failed))
    await thread.close()
    assert not failed
    return told


@pytest.mark.parametrize(("interval_s", "heard"), [(0.0, [0, 1, 2, 3]), (3600.0, [])])
async def test_layers_that_are_computed_quickly_are_left_to_the_forwards_end(
    interval_s: float, heard: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_thread, "LAYERS_INTERVAL_S", interval_s)
    assert await layers_told(fence=None) == heard


async def test_every_layer_is_told_while_a_device_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_thread, "LAYERS_INTERVAL_S", 3600.0)
    assert await layers_told(fence=object()) == [0, 1, 2, 3]


async def test_layers_are_told_from_the_moment_that_somebody_wants_them() -> None:
    asked = iter([False, False, True, True])
    assert await layers_told(fence=object(), wanted=lambda: next(asked)) == [2, 3]

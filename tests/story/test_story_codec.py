"""Whatever a core can be told survives the way into a file and back; what it cannot be told is refused by place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.core.events import SchedulerEvent
from common.core.registry_calls import RegistryCall
from common.core.scheduler_config import SchedulerConfig
from common.core.work import StepDelta
from common.core.worker_config import WorkerCoreConfig
from common.core.worker_events import WorkerEvent
from common.story.codec import Unreadable, decode, encode

STEP = StepDelta(step=1, positions=(3, 4), token_ids=(7, 8), confidences=(0.5, 0.25))


def there_and_back(hint: Any, value: Any) -> Any:
    return decode(hint, json.loads(json.dumps(encode(value))), "value")


@pytest.mark.parametrize("hint", [SchedulerEvent, WorkerEvent, RegistryCall, SchedulerConfig, WorkerCoreConfig])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_a_core_is_told_comes_back_as_it_was(hint: Any, data: st.DataObject) -> None:
    settings_with_weights = {"tenant_weights": st.dictionaries(st.text(), st.integers())}
    drawn = st.builds(hint, **settings_with_weights) if hint is SchedulerConfig else st.from_type(hint)
    value = data.draw(drawn)
    # Compared as text: nan is no number that equals itself.
    assert repr(there_and_back(hint, value)) == repr(value)


def test_a_step_reads_as_what_it_is() -> None:
    assert encode(STEP) == {
        "_": "StepDelta",
        "step": 1,
        "positions": [3, 4],
        "token_ids": [7, 8],
        "confidences": [0.5, 0.25],
    }


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"step": "1"}, "step: must be a value of type int, not '1'"),
        ({"step": True}, "step: must be a value of type int, not True"),
        ({"positions": 3}, "step.positions: must be a list, not 3"),
        ({"token_ids": [7, None]}, "step.token_ids[1]: must be a value of type int, not None"),
        ({"_": "Tick"}, "step: must be a StepDelta"),
        ({"colour": 1}, "step: StepDelta has no colour"),
    ],
)
def test_a_bad_value_is_refused_by_its_place(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(Unreadable) as refused:
        decode(StepDelta, {**encode(STEP), **change}, "step")
    assert problem in str(refused.value)


def test_a_missing_value_is_named() -> None:
    left = {name: value for name, value in encode(STEP).items() if name != "confidences"}
    with pytest.raises(Unreadable, match="step: StepDelta needs confidences"):
        decode(StepDelta, left, "step")


def test_a_class_that_does_not_belong_there_is_refused() -> None:
    with pytest.raises(Unreadable, match=r"event\._: must be one of \['CallFailed'"):
        decode(SchedulerEvent, encode(STEP), "event")

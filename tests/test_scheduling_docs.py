"""docs/scheduling.md against the configuration classes: every policy option, its default, a unit where it has one."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path

from common.config import SchedulerServiceConfig, ServiceConfig, WorkerConfig
from common.config_flags import flag_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scheduling.md"
NOT_POLICY = {
    *(setting.name for setting in dataclasses.fields(ServiceConfig)),
    *("kv_store_address", "scheduler_address", "advertise_host", "model_dir", "device", "dtype", "worker_id"),
    *("kv_transport", "kv_port", "torch_threads", "stuck_forward_s", "story_dir"),
    *("leader_lease", "leader_lease_s", "drain_s"),
}
UNITS = {"tokens", "seconds", "pages", "share", "shares", "iterations", "attempts", "requests", "decodes"}


def rows() -> dict[tuple[str, str], tuple[str, str, str]]:
    """(service, flag) -> (unit, default, effect) of the table."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `--"):
            flag, service, unit, default, effect = cells
            assert (service, flag) not in found, f"{flag} twice"
            found[service, flag.strip("`")] = (unit, default.strip("`"), effect)
    return found


def shown(value: object) -> str:
    """A default as the table writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value.value) if isinstance(value, enum.Enum) else str(value)


def policy_settings() -> dict[tuple[str, str], object]:
    """(service, flag) -> default of every setting that is about scheduling."""
    return {
        (service, flag_of(setting.name)): setting.default
        for service, cls in (("scheduler", SchedulerServiceConfig), ("worker", WorkerConfig))
        for setting in dataclasses.fields(cls)
        if setting.name not in NOT_POLICY
    }


def test_the_table_names_every_option_and_no_other():
    assert set(rows()) == set(policy_settings())


def test_the_table_has_the_defaults_of_the_code():
    assert {key: default for key, (_, default, _) in rows().items()} == {
        key: shown(value) for key, value in policy_settings().items()
    }


def test_every_number_has_a_unit_and_every_option_an_effect():
    for key, default in policy_settings().items():
        unit, _, effect = rows()[key]
        is_number = isinstance(default, int | float) and not isinstance(default, bool)
        assert unit in UNITS if is_number else unit in UNITS | {""}, key
        assert len(effect) > 20, key

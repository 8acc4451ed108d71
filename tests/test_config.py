"""Settings: flag over environment over default, and refusals that name the option."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from common.config import (
    GatewayConfig,
    KvStoreConfig,
    SchedulerServiceConfig,
    ServiceConfig,
    WorkerConfig,
    exit_for_user_error,
    load_config,
)
from common.config_flags import argv_of, env_of, flag_of
from common.core import defaults
from common.core.ids import ServingMode
from common.errors import ConfigError


def argv_of_all(config: ServiceConfig) -> tuple[str, ...]:
    return argv_of(type(config), **{each.name: getattr(config, each.name) for each in dataclasses.fields(config)})


WORKER_ARGV = ["--scheduler-address", "127.0.0.1:7000", "--model-dir", "/models/tiny"]
ALL = [GatewayConfig, SchedulerServiceConfig, WorkerConfig, KvStoreConfig]


def worker(*argv: str, **environ: str) -> WorkerConfig:
    return load_config(WorkerConfig, [*WORKER_ARGV, *argv], "sangam prefill_worker", environ=environ)


def scheduler(*argv: str, **environ: str) -> SchedulerServiceConfig:
    return load_config(SchedulerServiceConfig, list(argv), "sangam scheduler", environ=environ)


def test_defaults_are_the_cores():
    config = worker()
    assert (config.host, config.port, config.ready_file) == ("127.0.0.1", 0, None)
    assert config.token_budget == defaults.DEFAULT_TOKEN_BUDGET_TOKENS == 1024
    assert config.page_size_tokens == defaults.DEFAULT_PAGE_SIZE_TOKENS == 16
    assert config.model_dir == Path("/models/tiny")
    assert scheduler().overload_threshold == defaults.DEFAULT_OVERLOAD_THRESHOLD_TOKENS == 16384
    assert scheduler().mode is ServingMode.HYBRID


def test_flag_beats_environment_beats_default():
    assert worker().kv_pages == 0
    assert worker(SANGAM_KV_PAGES="64").kv_pages == 64
    assert worker("--kv-pages", "32", SANGAM_KV_PAGES="64").kv_pages == 32


def test_a_bad_environment_value_does_not_matter_under_a_flag():
    assert worker("--kv-pages", "32", SANGAM_KV_PAGES="many").kv_pages == 32


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("no", False), ("OFF", False)])
def test_booleans_from_the_environment(text, value):
    assert scheduler(SANGAM_OVERFLOW=text).overflow is value


def test_booleans_as_flags():
    assert scheduler("--no-overflow", SANGAM_OVERFLOW="true").overflow is False
    assert scheduler("--overflow", SANGAM_OVERFLOW="false").overflow is True


def test_required_settings_may_come_from_the_environment():
    config = load_config(WorkerConfig, [], "x", environ={"SANGAM_SCHEDULER_ADDRESS": "host:1", "SANGAM_MODEL_DIR": "m"})
    assert (config.scheduler_address, config.model_dir) == ("host:1", Path("m"))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "scheduler.svc:65535", "[::1]:7000"])
def test_addresses(address):
    assert scheduler("--kv-store-address", address).kv_store_address == address


def test_an_empty_variable_of_an_optional_setting_is_none():
    assert worker(SANGAM_READY_FILE="", SANGAM_KV_STORE_ADDRESS="").ready_file is None


SEVERAL = "host:port, or several different ones with commas"
BAD_VALUES = [
    (["--port", "x"], {}, "--port: must be a whole number, not 'x'"),
    (["--port", "-1"], {}, "--port: must be 0 or more, not -1"),
    (["--port", "65536"], {}, "--port: must be 65535 or less, not 65536"),
    (["--kv-pages", "1.5"], {}, "--kv-pages: must be a whole number, not '1.5'"),
    ([], {"SANGAM_KV_PAGES": "many"}, "SANGAM_KV_PAGES: must be a whole number, not 'many'"),
    (["--kv-lease-s", "0"], {}, "--kv-lease-s: must be above 0, not 0"),
    (["--kv-lease-s", "nan"], {}, "--kv-lease-s: must be a finite number, not 'nan'"),
    (["--dtype", "int8"], {}, "--dtype: must be one of auto, float32, bfloat16, float16, not 'int8'"),
    (["--log-level", "loud"], {}, "--log-level: must be one of debug, info, warning, error, not 'loud'"),
    (["--scheduler-address", "nohost"], {}, f"--scheduler-address: must be {SEVERAL}, not 'nohost'"),
    (["--scheduler-address", ":80"], {}, f"--scheduler-address: must be {SEVERAL}, not ':80'"),
    (["--scheduler-address", "h:0"], {}, f"--scheduler-address: must be {SEVERAL}, not 'h:0'"),
    (["--scheduler-address", "h:1,h:1"], {}, f"--scheduler-address: must be {SEVERAL}, not 'h:1,h:1'"),
    (["--scheduler-address", "h:1,"], {}, f"--scheduler-address: must be {SEVERAL}, not 'h:1,'"),
    (["--otlp-endpoint", "nohost"], {}, "--otlp-endpoint: must be host:port, not 'nohost'"),
    (["--model-dir", ""], {}, "--model-dir: must be a path, not empty"),
    (["--token-budget", "0"], {}, "--token-budget: must be 1 or more, not 0"),
    (["--nonsense", "1"], {}, "unrecognized arguments: --nonsense 1"),
    (["--kv-page", "1"], {}, "unrecognized arguments: --kv-page 1"),  # no abbreviations
]


@pytest.mark.parametrize(("argv", "environ", "text"), BAD_VALUES)
def test_bad_values_name_the_option_and_what_it_allows(argv, environ, text):
    with pytest.raises(ConfigError) as caught:
        worker(*argv, **environ)
    assert str(caught.value) == text


def test_bad_mode_and_bad_boolean():
    with pytest.raises(ConfigError, match="--mode: must be one of colocated, disaggregated, hybrid, not 'both'"):
        scheduler("--mode", "both")
    with pytest.raises(ConfigError, match=r"SANGAM_OVERFLOW: must be one of 1, true, .* not 'maybe'"):
        scheduler(SANGAM_OVERFLOW="maybe")


def test_a_missing_required_setting_names_flag_and_variable():
    with pytest.raises(ConfigError) as caught:
        load_config(GatewayConfig, ["--model-dir", "m"], "sangam gateway", environ={})
    assert str(caught.value) == "--scheduler-address is required (or set SANGAM_SCHEDULER_ADDRESS)"


@pytest.mark.parametrize("cls", ALL)
def test_help_shows_every_setting_with_its_variable(cls, capsys):
    with pytest.raises(SystemExit) as caught:
        load_config(cls, ["--help"], "sangam x", environ={})
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for setting in dataclasses.fields(cls):
        assert flag_of(setting.name) in text
        assert f"env {env_of(setting.name)}" in text


@pytest.mark.parametrize(
    "config",
    [
        KvStoreConfig(port=7, log_level="debug"),
        SchedulerServiceConfig(mode=ServingMode.COLOCATED, overflow=False, heartbeat_timeout_s=0.25),
        WorkerConfig(scheduler_address="h:1", model_dir=Path("a b"), ready_file=Path("/r/f"), kv_pages=9),
        GatewayConfig(scheduler_address="h:1", model_dir=Path("-m"), default_deadline_s=2.5),
    ],
)
def test_flags_of_a_config_are_read_back_equal_whatever_the_environment(config: ServiceConfig):
    noisy = {env_of(setting.name): "garbage" for setting in dataclasses.fields(config)}
    assert load_config(type(config), argv_of_all(config), "x", environ=noisy) == config


def test_a_users_mistake_is_one_line_and_exit_code_2(capsys):
    with pytest.raises(SystemExit) as caught:
        exit_for_user_error("sangam gateway", ConfigError("--port:\nbad"))
    assert caught.value.code == 2
    assert capsys.readouterr().err == "sangam gateway: error: --port: bad\n"


def test_budget_and_threshold_may_be_left_to_the_service():
    assert (worker("--token-budget", "auto").token_budget, worker("--token-budget", "512").token_budget) == (
        "auto",
        512,
    )
    assert scheduler(SANGAM_OVERLOAD_THRESHOLD="auto").overload_threshold == "auto"
    for config in (worker("--token-budget", "auto"), scheduler("--overload-threshold", "auto")):
        assert load_config(type(config), argv_of_all(config), "sangam", environ={}) == config


@pytest.mark.parametrize("text", ["Auto", "0", "-1", "1.5", ""])
def test_neither_number_nor_auto_is_refused(text):
    with pytest.raises(ConfigError, match=r"^--token-budget: must be"):
        worker("--token-budget", text)

"""The options of a simulated run, and the run they amount to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from common.core.ids import Role, ServingMode
from common.core.params import DEFAULT_BLOCK_LENGTH_TOKENS
from common.core.scheduler_config import SchedulerConfig
from common.errors import ConfigError
from common.sim.calibration import fit, read_steps
from common.sim.config import SimConfig, default_worker_config
from common.sim.core_options import apply_options, core_options
from common.sim.cost_model import RooflineCost, StepCost
from common.sim.faults import SPEC_FORM, FaultSettings, parse_faults
from common.sim.network import NetworkSettings
from common.sim.presets import PRESETS, Preset, find_preset
from common.sim.settings import Settings
from common.sim.story_steps import is_story, steps_of_stories
from common.workload.arrivals import SPEC_FORMS as ARRIVAL_FORMS
from common.workload.arrivals import Arrivals, TraceArrivals, parse_arrivals
from common.workload.lengths import SPEC_FORMS as LENGTH_FORMS
from common.workload.lengths import parse_lengths
from common.workload.traces import TraceRow, read_trace
from common.workload.workload import NAMED_LENGTHS, LengthModel, LengthRule, RequestShape, draw_requests

DEFAULT_QPS = 6.5
MAX_REQUESTS = 10_000_000
MAX_WORKERS = 100_000
"""In all cells together."""
MAX_KV_PAGES = 1_000_000

OPTIONS: Mapping[str, str] = {
    "preset": f"model and machine: {'|'.join(PRESETS)}",
    "workload": f"lengths of prompts and outputs: {'|'.join(NAMED_LENGTHS)}, or a CSV trace",
    "mode": "|".join(mode.value for mode in ServingMode),
    "prefill-workers": "prefill workers per cell (default 5; in colocated mode all workers do both)",
    "decode-workers": "decode workers per cell (default 3)",
    "qps": f"mean arrivals per second, over all cells (default {DEFAULT_QPS}, or as the trace has it)",
    "requests": "how many requests (default 2000)",
    "seed": "of arrivals, lengths, tokens and faults (default 0)",
    "calibrate": "measured step times to use in place of the preset's roofline: JSON, a worker's story, or a folder of "
    "stories",
    "arrivals": f"{ARRIVAL_FORMS} (default poisson, or trace where a trace has times)",
    "prompt-tokens": f"prompt lengths in place of the workload's: {LENGTH_FORMS}",
    "output-tokens": "output lengths in place of the workload's, same forms",
    "output-scale": "stretches the workload's outputs (default 1)",
    "max-output": "longest output in tokens; longer ones are cut (default 0: none is)",
    "tokens-per-step": "tokens that a forward reveals on average (default: the preset's)",
    "sustained-tflops": "rate of the linear layers (default: the preset's)",
    "block-length": f"tokens of a block (default {DEFAULT_BLOCK_LENGTH_TOKENS})",
    "kv-pages": "pages of each worker's pool (default: the preset's)",
    "network-delay": "one way, seconds (default 0.0002)",
    "cells": "schedulers, each with its own workers (default 1)",
    "faults": SPEC_FORM,
    **core_options(),
}
"""Every option with its help; all of them take one value and may be swept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A configuration, the requests to come, and what the user should know beforehand."""

    config: SimConfig
    requests: list[RequestShape]
    notes: tuple[str, ...]


def build_run(settings: Settings) -> Run:
    """The run that the options describe. Raises ConfigError naming the option and what it allows."""
    preset = find_preset(settings.text("preset", next(iter(PRESETS))), option="--preset")
    cost, cost_note = _cost(preset, settings)
    config = SimConfig(
        scheduler=apply_options(SchedulerConfig(mode=settings.member("mode", ServingMode.HYBRID)), settings),
        worker=apply_options(
            default_worker_config(
                role=Role.DECODE,
                pages_total=settings.whole("kv-pages", preset.pool_pages, least=1, most=MAX_KV_PAGES),
            ),
            settings,
        ),
        prefill_workers=settings.whole("prefill-workers", 5, most=MAX_WORKERS),
        decode_workers=settings.whole("decode-workers", 3, most=MAX_WORKERS),
        cost=cost,
        tokens_per_step=settings.number("tokens-per-step", preset.tokens_per_step, least=1.0),
        kv_link=preset.kv_link,
        max_canvas_tokens=preset.max_canvas_tokens,
        cells=settings.whole("cells", 1, least=1, most=MAX_WORKERS),
        block_length_tokens=settings.whole("block-length", DEFAULT_BLOCK_LENGTH_TOKENS, least=1),
        network=NetworkSettings(delay_s=settings.number("network-delay", NetworkSettings().delay_s, least=0.0)),
        faults=parse_faults(settings.text("faults"), option="--faults") if "faults" in settings else FaultSettings(),
        seed=settings.whole("seed", 0),
    )
    _check_workers(config)
    requests, workload_note = _requests(settings, config)
    _check_canvases(requests, config)
    return Run(config=config, requests=requests, notes=tuple(note for note in (cost_note, workload_note) if note))


def _cost(preset: Preset, settings: Settings) -> tuple[StepCost, str]:
    if "calibrate" in settings:
        path = Path(settings.text("calibrate"))
        read = steps_of_stories if is_story(path) else read_steps
        calibration = fit(read(path, option="--calibrate"), option="--calibrate")
        cost = calibration.cost
        note = (
            f"{path}: a step takes {cost.launch_s * 1e3:.3g} ms, {cost.prefill_token_s * 1e6:.3g} us per prefill token "
            f"and {cost.decode_token_s * 1e6:.3g} us per decode token (error {calibration.relative_error:.1%})"
        )
        return cost, note
    machine = preset.machine
    tflops = settings.number("sustained-tflops", machine.sustained_flops / 1e12, above=0.0)
    return RooflineCost(shape=preset.shape, machine=replace(machine, sustained_flops=tflops * 1e12)), ""


def _requests(settings: Settings, config: SimConfig) -> tuple[list[RequestShape], str]:
    wanted = settings.whole("requests", 2000, least=1, most=MAX_REQUESTS)
    qps = settings.number("qps", DEFAULT_QPS, above=0.0)
    name = settings.text("workload", next(iter(NAMED_LENGTHS)))
    form = settings.text("arrivals", "poisson")
    if name in NAMED_LENGTHS:
        if form == "trace":
            raise ConfigError("--arrivals: trace needs a CSV file with times as --workload; allowed: poisson, gamma:CV")
        arrivals: Arrivals = parse_arrivals(form, qps=qps, option="--arrivals")
        lengths = _lengths(name, settings)
        return draw_requests(arrivals=arrivals, lengths=lengths, requests=wanted, seed=config.seed), ""
    rows = _trace(name)
    times_s = [row.arrival_s for row in rows if row.arrival_s is not None]
    if form == "trace" or ("arrivals" not in settings and times_s):
        if not times_s:
            raise ConfigError(f"--arrivals: {name} has no column of times; allowed: poisson, gamma:CV")
        arrivals = TraceArrivals(times_s, qps=qps if "qps" in settings else None)
    else:
        arrivals = parse_arrivals(form, qps=qps, option="--arrivals")
    rule = _rule(settings, LengthRule())
    pairs = [rule.apply(row.prompt_tokens, row.output_tokens) for row in rows]
    requests = draw_requests(arrivals=arrivals, lengths=pairs, requests=wanted, seed=config.seed)
    short = f"{name} holds {len(rows)} requests, {wanted} were asked for: the run ends after {len(requests)}"
    return requests, short if len(requests) < wanted else ""


def _trace(name: str) -> list[TraceRow]:
    path = Path(name)
    if not name or (path.suffix != ".csv" and not os.path.exists(name)):  # Path.exists raises for a name too long
        raise ConfigError(f"--workload: {name!r} is not known; allowed: {', '.join(NAMED_LENGTHS)}, or a CSV file")
    return read_trace(path, option="--workload")


def _lengths(name: str, settings: Settings) -> LengthModel:
    """The named lengths with what was given in their place; given lengths are not cut to the context unasked."""
    model = NAMED_LENGTHS[name]
    if "prompt-tokens" in settings:
        prompt = parse_lengths(settings.text("prompt-tokens"), option="--prompt-tokens")
        model = replace(model, prompt=prompt, rule=LengthRule())
    if "output-tokens" in settings:
        output = parse_lengths(settings.text("output-tokens"), option="--output-tokens")
        model = replace(model, output=output, rule=LengthRule())
    return replace(model, rule=_rule(settings, model.rule))


def _rule(settings: Settings, rule: LengthRule) -> LengthRule:
    longest = settings.whole("max-output", 0)
    scale = settings.number("output-scale", 1.0, above=0.0)
    return replace(rule, output_scale=scale, max_output_tokens=longest or None)


def _check_workers(config: SimConfig) -> None:
    mode = config.scheduler.mode
    if not config.roles:
        raise ConfigError("--prefill-workers: a cluster needs workers; allowed: at least 1 worker in all")
    workers = config.cells * len(config.roles)
    if workers > MAX_WORKERS:
        raise ConfigError(f"--cells: {workers} workers are too many; allowed: at most {MAX_WORKERS} in all cells")
    if mode is ServingMode.COLOCATED:
        return
    if Role.DECODE not in config.roles:
        raise ConfigError(f"--decode-workers: {mode.value} needs decode workers; allowed: a whole number of at least 1")
    if mode is ServingMode.DISAGGREGATED and Role.PREFILL not in config.roles:
        raise ConfigError("--prefill-workers: disaggregated needs prefill workers; allowed: at least 1")


def _check_canvases(requests: list[RequestShape], config: SimConfig) -> None:
    """Refuse a workload with a canvas that fits no worker."""
    block = config.block_length_tokens
    limit = config.canvas_limit_tokens
    fixed = config.scheduler.max_gen_len_tokens
    for index, request in enumerate(requests):
        if 0 < fixed < request.output_tokens:
            story = f"request {index} has an output of {request.output_tokens} tokens"
            raise ConfigError(f"--max-gen-len: {story}; allowed: 0, or at least the longest output")
        canvas = request.prompt_tokens + -(-(fixed or request.output_tokens) // block) * block
        if canvas > limit:
            pool = config.worker.pages_total * config.worker.page_size_tokens
            option = "--kv-pages" if pool < config.max_canvas_tokens else "--max-gen-len" if fixed else "--workload"
            needed = -(-canvas // config.worker.page_size_tokens)
            fix = f"at least {needed} pages" if option == "--kv-pages" else f"canvases of at most {limit} tokens"
            story = f"request {index} has a canvas of {canvas} tokens, which fits no worker"
            raise ConfigError(f"{option}: {story}; allowed: {fix}")

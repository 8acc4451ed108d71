"""Generate text for one prompt, at a gateway or (--local) in this process; text streams to stdout as it commits."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys

from common.cli.arguments import folder
from common.cli.default_model import default_model_dir
from common.cli.gateway_client import OnText, generate_at, request_of
from common.cli.generation_output import GenerationOutput
from common.cli.reconnect import Reconnect
from common.cli.run_dir import is_gateway_of_mine
from common.cli.text_output import TextOutput
from common.config_values import DTYPE_CHOICES, is_address
from common.core.params import (
    DEFAULT_BLOCK_LENGTH_TOKENS,
    DEFAULT_CONFIDENCE_THRESHOLD,
    CacheMode,
    ConfidenceDynamic,
    ConfidenceQuota,
    ConfidenceThreshold,
    RandomReveal,
    RevealStrategy,
)
from common.errors import ConfigError, InvalidRequest
from common.generation_input import GenerationInput
from common.prompt import PromptFormat

DEFAULT_ADDRESS = "127.0.0.1:50051"
ADDRESS_VARIABLE = "SANGAM_ADDRESS"
DEFAULT_MAX_TOKENS = 64
_LOCAL_ONLY = ("model", "device", "dtype", "kv_pages")
_GATEWAY_ONLY = ("address", "request_id", "no_retry")
_FLAG_OF_FIELD = {
    "prompt": "--prompt",
    "token_ids": "--token-ids",
    "max_tokens": "--max-tokens",
    "block_length_tokens": "--block-length",
    "confidence_threshold": "--threshold",
    "confidence_quota": "--quota",
    "confidence_dynamic": "--dynamic",
    "temperature": "--temperature",
    "seed": "--seed",
    "request_id": "--request-id",
}
"""What to type differently, by the name that the API has for it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `sangam generate`."""
    _add_request_arguments(parser)
    _add_sampling_arguments(parser)
    _add_place_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Generate and print; returns 0. Raises `SangamError` for anything that goes wrong; a bad field by its flag."""
    try:
        return _run(args)
    except InvalidRequest as error:
        raise type(error)(_FLAG_OF_FIELD.get(error.field, error.field), error.problem) from None


def _run(args: argparse.Namespace) -> int:
    wanted = input_of(args)
    wanted.check()
    if args.json:
        print(_generate(args, wanted, on_text=lambda text: None).to_json())
        return 0
    output = TextOutput(sys.stdout)
    try:
        report = _generate(args, wanted, on_text=output.write)
    finally:
        output.end_line()
    print(f"sangam generate: {report.summary()}", file=sys.stderr)
    return 0


def input_of(args: argparse.Namespace) -> GenerationInput:
    """The request that the flags describe, unchecked."""
    return GenerationInput(
        text=args.prompt,
        token_ids=args.token_ids,
        max_tokens=args.max_tokens,
        block_length_tokens=args.block_length,
        cache_mode=CacheMode(args.cache),
        strategy=_strategy_of(args),
        temperature=args.temperature,
        seed=args.seed,
        ignore_eos=args.ignore_eos,
        prompt_format=PromptFormat.PLAIN if args.raw else PromptFormat.AUTO,
    )


def _generate(args: argparse.Namespace, wanted: GenerationInput, *, on_text: OnText) -> GenerationOutput:
    if args.local:
        return _generate_locally(args, wanted, on_text)
    for name in _LOCAL_ONLY:
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: only with --local")
    address = args.address or _address(os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS)
    request = request_of(wanted)
    request.request_id = args.request_id or ""
    reconnect = None if args.no_retry else Reconnect(expected=is_gateway_of_mine(address))
    return asyncio.run(
        generate_at(address, request, timeout_s=args.timeout, on_text=on_text, reconnect=reconnect, on_notice=_say),
    )


def _say(line: str) -> None:
    print(f"sangam generate: {line}", file=sys.stderr)


def _generate_locally(args: argparse.Namespace, wanted: GenerationInput, on_text: OnText) -> GenerationOutput:
    # Tokenizer and engine: not needed, and not everywhere installed, when a gateway does the work.
    from common.cli.local import LocalOptions, generate_locally

    for name in _GATEWAY_ONLY:
        if getattr(args, name):
            raise ConfigError(f"--{name.replace('_', '-')}: not with --local")
    options = LocalOptions(
        model_dir=default_model_dir() if args.model is None else args.model,
        device=args.device or "cpu",
        dtype=None if args.dtype == "auto" else args.dtype,
        kv_pages=args.kv_pages,
        timeout_s=args.timeout,
    )
    return generate_locally(wanted, options, on_text=on_text)


def _add_request_arguments(parser: argparse.ArgumentParser) -> None:
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt; special tokens spelled out in it stay text")
    prompt.add_argument("--token-ids", metavar="1,2,3", type=_token_ids, help="the prompt as token ids")
    parser.add_argument(
        "--raw", action="store_true", help="give the model the prompt as it is, not as a turn of its chat template"
    )
    parser.add_argument(
        "--max-tokens",
        metavar="N",
        type=int,
        default=DEFAULT_MAX_TOKENS,
        help="most tokens to generate (default %(default)s)",
    )
    parser.add_argument(
        "--block-length",
        metavar="N",
        type=int,
        default=DEFAULT_BLOCK_LENGTH_TOKENS,
        help="tokens denoised together (default %(default)s)",
    )
    modes = [mode.value for mode in CacheMode]
    parser.add_argument("--cache", choices=modes, default="dual", help="which K/V decode steps reuse (default dual)")
    parser.add_argument("--ignore-eos", action="store_true", help="go on past an end-of-text token")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of streaming text")
    parser.add_argument("--timeout", metavar="S", type=_positive_s, help="deadline in seconds (default: none)")


def _add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    strategy = parser.add_mutually_exclusive_group()
    strategy.add_argument(
        "--threshold",
        metavar="C",
        type=float,
        help=f"reveal tokens of at least this confidence, 0 to 1 (default {DEFAULT_CONFIDENCE_THRESHOLD})",
    )
    strategy.add_argument("--quota", metavar="K", type=int, help="reveal the K most confident tokens of each step")
    strategy.add_argument("--dynamic", metavar="F", type=float, help="reveal an adaptive number of tokens, factor F")
    strategy.add_argument("--random", action="store_true", help="reveal a random number of random tokens")
    parser.add_argument("--temperature", metavar="T", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--seed", metavar="N", type=int, help="seed, 64 bits (default: from the request's content)")


def _add_place_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        type=_address_argument,
        help=f"the gateway (default {ADDRESS_VARIABLE}, else {DEFAULT_ADDRESS})",
    )
    parser.add_argument(
        "--request-id",
        metavar="ID",
        help="name of the request; one that runs or finished not long ago is attached to (default: a random one)",
    )
    parser.add_argument(
        "--no-retry",
        action="store_true",
        help="fail when the gateway goes away, instead of going on where the text is as soon as it is back",
    )
    local = parser.add_argument_group("without services")
    local.add_argument("--local", action="store_true", help="run the engine in this process")
    local.add_argument(
        "--model", metavar="DIR", type=folder, help="checkpoint folder (default: sangam-tiny, which is part of Sangam)"
    )
    local.add_argument("--device", metavar="NAME", help="cpu (default), cuda, cuda:0, ...")
    local.add_argument("--dtype", choices=DTYPE_CHOICES, help="type of weights and K/V")
    local.add_argument("--kv-pages", metavar="N", type=_positive_int, help="KV pages (default: what the request needs)")


def _strategy_of(args: argparse.Namespace) -> RevealStrategy:
    if args.quota is not None:
        return ConfidenceQuota(args.quota)
    if args.dynamic is not None:
        return ConfidenceDynamic(args.dynamic)
    if args.random:
        return RandomReveal()
    return ConfidenceThreshold(DEFAULT_CONFIDENCE_THRESHOLD if args.threshold is None else args.threshold)


def _token_ids(text: str) -> tuple[int, ...]:
    if not text.strip():
        return ()
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers with commas between, not {text!r}") from None


def _positive_s(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return value


def _positive_int(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _address_argument(text: str) -> str:
    try:
        return _address(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _address(text: str) -> str:
    if not is_address(text):
        raise ConfigError(f"the gateway's address must be host:port, not {text!r}")
    return text

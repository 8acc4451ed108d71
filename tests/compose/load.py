"""Requests of the proof: fifty that differ in prompt, length and sampling, each with tokens that only it can have."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any

from common.cli.gateway_client import generate_at, request_of
from common.cli.generation_output import GenerationOutput
from common.core.params import ConfidenceQuota
from common.generation_input import GenerationInput
from tests.compose.docker_engine import ProofFailed

REQUESTS = 50
REQUEST_TIMEOUT_S = 120.0
_QUIET_CONCURRENCY = 2
_WORDS = ("river", "stone", "lamp", "seven", "cold", "orchard", "night", "paper", "salt", "engine")


def requests() -> list[GenerationInput]:
    """The same fifty requests at every call: 64 to 160 tokens, half of them sampled at a temperature."""
    rng = random.Random(7)
    return [
        GenerationInput(
            text=f"{index}: " + " ".join(rng.choices(_WORDS, k=rng.randint(3, 30))),
            token_ids=None,
            max_tokens=rng.randint(64, 160),
            temperature=0.7 * (index % 2),
            seed=index,
            # As many forwards as tokens: workers are busy for long enough to be hit.
            strategy=ConfidenceQuota(1),
            ignore_eos=True,
        )
        for index in range(REQUESTS)
    ]


async def run_quietly(address: str) -> list[GenerationOutput]:
    """All requests, two at a time: what the tokens must be."""
    gate = asyncio.Semaphore(_QUIET_CONCURRENCY)

    async def one(wanted: GenerationInput) -> GenerationOutput:
        async with gate:
            return await _generate(address, wanted)

    return await _all([one(wanted) for wanted in requests()])


async def run_at_once(address: str) -> list[GenerationOutput]:
    """All requests at the same time. Raises what the first that fails raises."""
    return await _all([_generate(address, wanted) for wanted in requests()])


def check_equal(outputs: Sequence[GenerationOutput], quiet: Sequence[GenerationOutput]) -> None:
    """Compare token ids and text with the quiet run's. Raises ProofFailed naming the requests that differ."""
    differing = [
        index
        for index, (output, expected) in enumerate(zip(outputs, quiet, strict=True))
        if (output.token_ids, output.text) != (expected.token_ids, expected.text)
    ]
    if differing:
        raise ProofFailed(f"requests {differing} differ from the quiet run")


def repeated_attempts(outputs: Sequence[GenerationOutput]) -> int:
    """Attempts beyond each block's first."""
    return sum(block.attempts - 1 for output in outputs for block in output.blocks)


async def _generate(address: str, wanted: GenerationInput) -> GenerationOutput:
    return await generate_at(address, request_of(wanted), timeout_s=REQUEST_TIMEOUT_S, on_text=lambda text: None)


async def _all(works: Sequence[Coroutine[Any, Any, GenerationOutput]]) -> list[GenerationOutput]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
    return [task.result() for task in tasks]

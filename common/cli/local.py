"""`sangam generate --local`: the engine in this process, no services; same seed, same tokens, same report."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from common.cli.generation_output import BlockReport, GenerationOutput
from common.committed import CommittedStream, CommittedTokens
from common.core.defaults import DEFAULT_PAGE_SIZE_TOKENS
from common.core.work import RequestSpec, StepDelta
from common.errors import Reason, TooLong, WireError
from common.generation_input import GenerationInput
from common.model_config import load_model_config
from common.prompt_encoding import encode_prompt
from common.text_codec import TextCodec, load_text_codec

if TYPE_CHECKING:
    from common.engine.engine import Engine

LOCAL_WORKER_ID = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Where and how the engine runs. `dtype` None: by device; `kv_pages` None: as many as the request needs."""

    model_dir: Path
    device: str
    dtype: str | None
    kv_pages: int | None
    timeout_s: float | None


def generate_locally(
    wanted: GenerationInput, options: LocalOptions, *, on_text: Callable[[str], None]
) -> GenerationOutput:
    """Load the model, run the checked request, and report it; `on_text` gets the text piece by piece.

    Raises `InvalidRequest` before torch is even loaded, `CheckpointError`, `ConfigError`, or `WireError`
    DEADLINE_EXCEEDED after `timeout_s` (checked between forwards, loading included).
    """
    started_s = time.monotonic()
    model = load_model_config(options.model_dir)
    codec = load_text_codec(options.model_dir)
    prompt = encode_prompt(codec, wanted)
    spec = wanted.to_spec(request_id=f"local-{secrets.token_hex(8)}", prompt_token_ids=prompt, model=model)
    engine = _load_engine(options, pages=_pages_for(spec, options.kv_pages))
    ends_at_s = None if options.timeout_s is None else started_s + options.timeout_s
    return _generate(engine, spec, codec, on_text=on_text, ends_at_s=ends_at_s)


def _pages_for(spec: RequestSpec, given: int | None) -> int:
    needed = spec.pages(DEFAULT_PAGE_SIZE_TOKENS)
    if given is not None and given < needed:
        raise TooLong(
            "max_tokens", f"the canvas of {spec.canvas_tokens} tokens needs {needed} pages, there are {given}"
        )
    return given or needed


def _load_engine(options: LocalOptions, *, pages: int) -> Engine:
    # torch takes seconds to import: only once the request is known to be good.
    from common.engine.engine import Engine

    return Engine.load(
        options.model_dir,
        device=options.device,
        dtype=options.dtype,
        num_pages=pages,
        page_size_tokens=DEFAULT_PAGE_SIZE_TOKENS,
    )


@dataclass(slots=True, kw_only=True)
class _BlockTimer:
    """Turns the stream of deltas into block reports: step 0 opens a block, every further one is a decode."""

    last_s: float = field(default_factory=time.monotonic)
    blocks: list[tuple[float, list[float]]] = field(default_factory=list)

    def take(self, delta: StepDelta) -> None:
        now = time.monotonic()
        duration_s, self.last_s = now - self.last_s, now
        if delta.step == 0:
            self.blocks.append((duration_s, []))
        else:
            self.blocks[-1][1].append(duration_s)

    def reports(self) -> tuple[BlockReport, ...]:
        return tuple(
            BlockReport(
                block=block,
                prefill_worker_id=LOCAL_WORKER_ID,
                decode_worker_id=LOCAL_WORKER_ID if decodes_s else "",
                overflow=False,
                prefill_forwards=1,
                decode_forwards=len(decodes_s),
                attempts=1,
                queue_s=0.0,
                prefill_s=prefill_s,
                transfer_s=0.0,
                transfer_bytes=0,
                decode_s=sum(decodes_s),
            )
            for block, (prefill_s, decodes_s) in enumerate(self.blocks)
        )


def _generate(
    engine: Engine,
    spec: RequestSpec,
    codec: TextCodec,
    *,
    on_text: Callable[[str], None],
    ends_at_s: float | None,
) -> GenerationOutput:
    from common.engine.generator import GenerationResult, LocalGenerator

    tokens = CommittedTokens.of(spec, eos_token_id=engine.config.eos_token_id)
    stream = CommittedStream(tokens=tokens, text=codec.stream())
    pieces: list[str] = []
    started_s = time.monotonic()
    first_commit_s = 0.0
    timer = _BlockTimer()
    for event in LocalGenerator(engine).generate(spec):
        if isinstance(event, GenerationResult):
            break
        timer.take(event)
        committed, _ = stream.reveal(event.positions, event.token_ids)
        if committed is not None:
            first_commit_s = first_commit_s or time.monotonic() - started_s
            pieces.append(committed.text)
            on_text(committed.text)
        if ends_at_s is not None and time.monotonic() > ends_at_s and tokens.finish is None:
            raise WireError(Reason.DEADLINE_EXCEEDED, "the deadline passed")
    assert tokens.finish is not None, "the generator ended with tokens missing"
    blocks = timer.reports()
    return GenerationOutput(
        request_id=spec.request_id,
        token_ids=tokens.token_ids,
        text="".join(pieces),
        finish_reason=tokens.finish.value,
        seed=spec.sampling.seed,
        cache_mode=spec.cache_mode.value,
        prompt_tokens=len(spec.prompt_token_ids),
        prefill_forwards=sum(block.prefill_forwards for block in blocks),
        decode_forwards=sum(block.decode_forwards for block in blocks),
        attempts=len(blocks),
        carried_tokens=0,
        time_to_first_commit_s=first_commit_s,
        total_s=time.monotonic() - started_s,
        blocks=blocks,
    )

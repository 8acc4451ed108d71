"""What a worker refuses before any compute: no call, however malformed, may break a forward.

`common.rpc.convert` has checked what a message can be wrong in by itself; here it meets this worker's model.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.core.kv_layout import KvLayout
from common.core.params import CacheMode
from common.core.work import BlockWork, KvSource, LocalPrefill, NoKv, RemoteKv, StepDelta
from common.errors import InvalidPrompt, InvalidRequest, Reason, TooLong, WireError
from common.model_config import ModelConfig


def check_work(work: BlockWork, model: ModelConfig) -> None:
    """Raise `InvalidRequest` (or a subclass) naming the field of `work` that this model cannot run."""
    model.check_prompt(work.prompt_token_ids)
    _check_ids("generated_token_ids", work.generated_token_ids, model)
    if work.canvas_tokens > model.max_canvas_tokens:
        problem = f"a canvas of {work.canvas_tokens} tokens; the model takes {model.max_canvas_tokens}"
        raise TooLong("max_tokens", problem)


def check_source(
    work: BlockWork, source: KvSource, *, layout: KvLayout, readable: frozenset[str], model: ModelConfig
) -> None:
    """Raise when the K/V source does not belong to `work`, lies in another layout or cannot be read over any of the
    `readable` transports (`LAYOUT_MISMATCH`)."""
    if isinstance(source, LocalPrefill):
        return
    if source.first is not None:
        check_first(work, source.first, model)
    if isinstance(source, RemoteKv):
        _check_handle(work, source, layout, readable)
    elif isinstance(source, NoKv) and work.cache_mode is not CacheMode.NONE:
        raise InvalidRequest("kv_source", f"cache mode {work.cache_mode.value} needs K/V")


def _check_ids(field: str, token_ids: Sequence[int], model: ModelConfig) -> None:
    if token_ids and max(token_ids) >= model.vocab_size_tokens:
        raise InvalidPrompt(field, f"id {max(token_ids)} is outside the vocabulary 0..{model.vocab_size_tokens - 1}")
    if model.mask_token_id in token_ids:
        raise InvalidPrompt(field, f"the mask id {model.mask_token_id} is no token")


def check_first(work: BlockWork, first: StepDelta, model: ModelConfig) -> None:
    """Raise `InvalidRequest` unless `first` can be what the prefill of `work` revealed."""
    start, end = work.block_start_position, work.block_start_position + work.block_length_tokens
    if first.step != 0:
        raise InvalidRequest("first.step", f"must be 0, the prefill's own step, not {first.step}")
    if not first.positions:
        raise InvalidRequest("first.positions", "is empty; every step reveals a token")
    if first.positions[0] < start or first.positions[-1] >= end:
        raise InvalidRequest("first.positions", f"must lie within the block [{start}, {end})")
    _check_ids("first.token_ids", first.token_ids, model)


def _check_handle(work: BlockWork, source: RemoteKv, layout: KvLayout, readable: frozenset[str]) -> None:
    handle = source.handle
    if handle.layout_fingerprint != layout.fingerprint:
        raise WireError(Reason.LAYOUT_MISMATCH, "the K/V lies in the layout of another model or dtype")
    if handle.transport not in readable:
        problem = f"the K/V is offered over {handle.transport}; this worker reads {', '.join(sorted(readable))}"
        raise WireError(Reason.LAYOUT_MISMATCH, problem)
    if handle.attempt != work.attempt:
        raise InvalidRequest("handle.attempt", f"holds the K/V of {handle.attempt}, not of {work.attempt}")
    if (handle.canvas_tokens, handle.pages) != (work.canvas_tokens, work.pages(layout.page_size_tokens)):
        raise InvalidRequest("handle.pages", "do not hold this canvas")

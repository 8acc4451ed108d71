"""What is asked for: sampling parameters, whole requests, single blocks."""

from __future__ import annotations

from collections.abc import Sequence

from common.core.ids import RequestId
from common.core.params import (
    DEFAULT_CONFIDENCE_THRESHOLD,
    ConfidenceDynamic,
    ConfidenceQuota,
    ConfidenceThreshold,
    RandomReveal,
    RevealStrategy,
    SamplingParams,
)
from common.core.work import BlockWork, RequestSpec
from common.errors import InvalidPrompt, InvalidRequest
from common.rpc.convert.enums import cache_mode_from_proto, cache_mode_to_proto
from common.rpc.convert.fields import join, non_empty, positive, require, same_length
from common.rpc.convert.ids import block_attempt_from_proto, block_attempt_to_proto
from common.rpc.convert.progress import step_delta_from_proto
from sangam.v1 import scheduler_pb2, types_pb2


def sampling_params_to_proto(params: SamplingParams) -> types_pb2.SamplingParams:
    """The message of `params`."""
    message = types_pb2.SamplingParams(temperature=params.temperature, seed=params.seed)
    match params.strategy:
        case ConfidenceThreshold(threshold=threshold):
            message.confidence_threshold = threshold
        case ConfidenceQuota(quota=quota):
            message.confidence_quota = quota
        case ConfidenceDynamic(factor=factor):
            message.confidence_dynamic = factor
        case RandomReveal():
            message.random.SetInParent()
    return message


def sampling_params_from_proto(message: types_pb2.SamplingParams, *, default_seed: int | None = None) -> SamplingParams:
    """The parameters, validated; `default_seed` stands in for an absent seed.

    Raises BadSamplingParams naming the field as a client knows it ("temperature"), or InvalidRequest for an absent
    seed where the caller has no default: inside the cluster seeds are always resolved.
    """
    if message.HasField("seed"):
        seed = message.seed
    elif default_seed is not None:
        seed = default_seed
    else:
        raise InvalidRequest("seed", "is missing")
    params = SamplingParams(strategy=reveal_strategy_from_proto(message), temperature=message.temperature, seed=seed)
    params.validate()
    return params


def request_spec_to_proto(spec: RequestSpec) -> scheduler_pb2.ScheduleRequest:
    """The message of `spec`; the deadline travels with the call, not in it."""
    message = scheduler_pb2.ScheduleRequest(
        request_id=spec.request_id,
        prompt_token_ids=spec.prompt_token_ids,
        max_tokens=spec.max_tokens,
        block_length_tokens=spec.block_length_tokens,
        cache_mode=cache_mode_to_proto(spec.cache_mode),
        sampling=sampling_params_to_proto(spec.sampling),
        ignore_eos=spec.ignore_eos,
        tenant=spec.tenant,
        priority=spec.priority,
        committed_token_ids=spec.committed_token_ids,
        idle=spec.idle,
    )
    if spec.shown:
        message.shown.positions.extend(position for position, _ in spec.shown)
        message.shown.token_ids.extend(token for _, token in spec.shown)
        message.shown.confidences.extend(1.0 for _ in spec.shown)
    return message


def request_spec_from_proto(message: scheduler_pb2.ScheduleRequest, *, deadline_s: float | None) -> RequestSpec:
    """The request; `deadline_s` comes from the call. Raises InvalidRequest naming the field."""
    block_length_tokens = positive(message.block_length_tokens, "block_length_tokens")
    if len(message.committed_token_ids) % block_length_tokens:
        raise InvalidRequest("committed_token_ids", f"must be whole blocks of {block_length_tokens}")
    shown = step_delta_from_proto(message.shown, "shown")
    return RequestSpec(
        request_id=RequestId(non_empty(message.request_id, "request_id")),
        prompt_token_ids=_prompt(message.prompt_token_ids, "prompt_token_ids"),
        max_tokens=positive(message.max_tokens, "max_tokens"),
        block_length_tokens=block_length_tokens,
        cache_mode=cache_mode_from_proto(message.cache_mode),
        sampling=_sampling(message, ""),
        ignore_eos=message.ignore_eos,
        tenant=message.tenant,
        priority=message.priority,
        deadline_s=deadline_s,
        committed_token_ids=tuple(message.committed_token_ids),
        shown=tuple(zip(shown.positions, shown.token_ids, strict=True)),
        idle=message.idle,
    )


def block_work_to_proto(work: BlockWork, *, target_incarnation: int) -> types_pb2.BlockWork:
    """The message of `work`, addressed to one life of the worker it goes to."""
    return types_pb2.BlockWork(
        attempt=block_attempt_to_proto(work.attempt),
        target_incarnation=target_incarnation,
        prompt_token_ids=work.prompt_token_ids,
        generated_token_ids=work.generated_token_ids,
        max_tokens=work.max_tokens,
        block_length_tokens=work.block_length_tokens,
        cache_mode=cache_mode_to_proto(work.cache_mode),
        sampling=sampling_params_to_proto(work.sampling),
        ignore_eos=work.ignore_eos,
        canvas_generated_tokens=work.canvas_generated_tokens,
    )


def block_work_from_proto(message: types_pb2.BlockWork, path: str = "work") -> BlockWork:
    """The work; the caller compares `message.target_incarnation` itself. Raises InvalidRequest naming the field."""
    attempt = block_attempt_from_proto(message.attempt, require(message, "attempt", path))
    max_tokens = positive(message.max_tokens, join(path, "max_tokens"))
    block_length_tokens = positive(message.block_length_tokens, join(path, "block_length_tokens"))
    start_position = attempt.block * block_length_tokens
    if start_position >= max_tokens:
        raise InvalidRequest(join(path, "attempt.block"), f"starts behind the last of {max_tokens} tokens")
    same_length(start_position, message.generated_token_ids, join(path, "generated_token_ids"))
    return BlockWork(
        attempt=attempt,
        prompt_token_ids=_prompt(message.prompt_token_ids, join(path, "prompt_token_ids")),
        generated_token_ids=tuple(message.generated_token_ids),
        max_tokens=max_tokens,
        block_length_tokens=block_length_tokens,
        cache_mode=cache_mode_from_proto(message.cache_mode, join(path, "cache_mode")),
        sampling=_sampling(message, path),
        ignore_eos=message.ignore_eos,
        canvas_generated_tokens=message.canvas_generated_tokens,
    )


def _sampling(message: scheduler_pb2.ScheduleRequest | types_pb2.BlockWork, path: str) -> SamplingParams:
    require(message, "sampling", path)
    return sampling_params_from_proto(message.sampling)


def _prompt(token_ids: Sequence[int], path: str) -> tuple[int, ...]:
    if not token_ids:
        raise InvalidPrompt(path, "must not be empty")
    return tuple(token_ids)


def reveal_strategy_from_proto(message: types_pb2.SamplingParams) -> RevealStrategy:
    """The strategy named, unchecked; the default one when none is."""
    match message.WhichOneof("strategy"):
        case "confidence_quota":
            return ConfidenceQuota(message.confidence_quota)
        case "confidence_dynamic":
            return ConfidenceDynamic(message.confidence_dynamic)
        case "random":
            return RandomReveal()
        case "confidence_threshold":
            return ConfidenceThreshold(message.confidence_threshold)
    return ConfidenceThreshold(DEFAULT_CONFIDENCE_THRESHOLD)

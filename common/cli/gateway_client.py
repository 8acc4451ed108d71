"""A client of InferenceService: one request out, text as it commits, a `GenerationOutput` at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc
import grpc.aio

from common.cli.generation_output import BlockReport, GenerationOutput
from common.core.params import (
    ConfidenceDynamic,
    ConfidenceQuota,
    ConfidenceThreshold,
    RandomReveal,
    RevealStrategy,
)
from common.errors import ConfigError, InvalidPrompt, Reason, WireError
from common.generation_input import MAX_INT64, GenerationInput
from common.prompt import ChatMessage
from common.rpc.channel import open_channel
from common.rpc.convert import (
    cache_mode_from_proto,
    cache_mode_to_proto,
    finish_reason_from_proto,
    prompt_format_to_proto,
)
from common.rpc.status import wire_error
from sangam.v1 import inference_pb2, inference_pb2_grpc, types_pb2

_MAX_INT32 = 2**31 - 1

OnText = Callable[[str], None]
OnTokens = Callable[[Sequence[int], Sequence[int]], None]
"""Gets positions (from 0, the first generated token) and ids, parallel, of tokens that are known now."""


def request_of(wanted: GenerationInput) -> inference_pb2.GenerateRequest:
    """The wire's form of a checked request. Raises `InvalidPrompt` for ids that the wire cannot carry."""
    return inference_pb2.GenerateRequest(
        text=wanted.text,
        token_ids=None if wanted.token_ids is None else inference_pb2.TokenIds(ids=_wire_ids(wanted.token_ids)),
        chat=None if wanted.messages is None else _chat_of(wanted.messages),
        prompt_format=prompt_format_to_proto(wanted.prompt_format),
        max_tokens=wanted.max_tokens,
        block_length_tokens=wanted.block_length_tokens,
        cache_mode=cache_mode_to_proto(wanted.cache_mode),
        sampling=_sampling_of(wanted),
        ignore_eos=wanted.ignore_eos,
    )


async def generate_at(
    address: str,
    request: inference_pb2.GenerateRequest,
    *,
    timeout_s: float | None,
    on_text: OnText,
    on_tokens: OnTokens = lambda positions, token_ids: None,
) -> GenerationOutput:
    """Run `request` at the gateway `address` (host:port); `on_text` gets the text piece by piece.

    `on_tokens` gets committed tokens, and with `include_revealed` in the request all others as they are revealed.

    Raises `WireError` when it fails, `ConfigError` when it is no gateway that answers there; cancelling this cancels
    the request.
    """
    async with open_channel(address) as channel:
        stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(request, timeout=timeout_s)
        answer = _Answer(on_text, on_tokens)
        try:
            async for response in call:
                answer.take(response)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise ConfigError(
                    f"--address: what answers at {address} is no gateway; `sangam up` prints the gateway's address"
                ) from None
            raise _explained(wire_error(error), address, begun=answer.begun) from None
        finally:
            call.cancel()
    return answer.output()


class _Answer:
    """Gathers one call's responses."""

    def __init__(self, on_text: OnText, on_tokens: OnTokens) -> None:
        self._on_text = on_text
        self._on_tokens = on_tokens
        self._accepted = inference_pb2.Accepted()
        self._finished: inference_pb2.Finished | None = None
        self._token_ids: list[int] = []
        self._text: list[str] = []
        self.begun = False

    def take(self, response: inference_pb2.GenerateResponse) -> None:
        self.begun = True
        match response.WhichOneof("event"):
            case "accepted":
                self._accepted = response.accepted
            case "committed":
                self._token_ids.extend(response.committed.token_ids)
                self._text.append(response.committed.text)
                self._on_text(response.committed.text)
                first = response.committed.from_position
                self._on_tokens(range(first, first + len(response.committed.token_ids)), response.committed.token_ids)
            case "revealed":
                self._on_tokens(response.revealed.positions, response.revealed.token_ids)
            case "finished":
                self._finished = response.finished

    def output(self) -> GenerationOutput:
        finished = self._finished
        finish = None if finished is None else finish_reason_from_proto(finished.finish_reason)
        if finished is None or finish is None:
            raise WireError(Reason.INTERNAL, "the gateway's answer ended before the request did")
        usage = finished.usage
        return GenerationOutput(
            request_id=self._accepted.request_id,
            token_ids=tuple(self._token_ids),
            text="".join(self._text),
            finish_reason=finish.value,
            seed=self._accepted.seed,
            cache_mode=cache_mode_from_proto(usage.cache_mode).value,
            prompt_tokens=usage.prompt_tokens,
            prefill_forwards=usage.prefill_forwards,
            decode_forwards=usage.decode_forwards,
            attempts=usage.attempts,
            time_to_first_commit_s=usage.time_to_first_commit_s,
            total_s=usage.total_s,
            blocks=tuple(_block_report(placement) for placement in finished.blocks),
        )


def _block_report(placement: types_pb2.BlockPlacement) -> BlockReport:
    return BlockReport(**{name: getattr(placement, name) for name in BlockReport.__dataclass_fields__})


def _chat_of(messages: Sequence[ChatMessage]) -> inference_pb2.Chat:
    turns = (inference_pb2.ChatMessage(role=message.role, content=message.content) for message in messages)
    return inference_pb2.Chat(messages=turns)


def _wire_ids(token_ids: Sequence[int]) -> Sequence[int]:
    for token in token_ids:
        if not -MAX_INT64 <= token <= MAX_INT64:
            raise InvalidPrompt("token_ids", f"id {token} is outside any vocabulary")
    return token_ids


def _sampling_of(wanted: GenerationInput) -> types_pb2.SamplingParams:
    sampling = types_pb2.SamplingParams(temperature=wanted.temperature, seed=wanted.seed)
    _set_strategy(sampling, wanted.strategy)
    return sampling


def _set_strategy(sampling: types_pb2.SamplingParams, strategy: RevealStrategy) -> None:
    match strategy:
        case ConfidenceThreshold(threshold):
            sampling.confidence_threshold = threshold
        case ConfidenceQuota(quota):
            # No canvas has that many positions, so the cap changes nothing.
            sampling.confidence_quota = min(quota, _MAX_INT32)
        case ConfidenceDynamic(factor):
            sampling.confidence_dynamic = factor
        case RandomReveal():
            sampling.random.SetInParent()


def _explained(error: WireError, address: str, *, begun: bool) -> WireError:
    """Say what a lost gateway means to someone at a terminal."""
    if error.reason is not Reason.PEER_LOST:
        return error
    if begun:
        return WireError(error.reason, f"the gateway at {address} went away in the middle of the answer")
    return WireError(error.reason, f"no gateway answers at {address}: start one with 'sangam up', or use --local")

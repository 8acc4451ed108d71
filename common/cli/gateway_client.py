"""A client of InferenceService: one request out, text as it commits, a `GenerationOutput` at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc
import grpc.aio

from common.cli.generation_output import BlockReport, GenerationOutput
from common.cli.reconnect import Reconnect, Reconnection, new_request_id
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
_CANCEL_TIMEOUT_S = 2.0

_WAITS = {
    types_pb2.WAIT_REASON_NO_WORKER: "no worker is there to take the request (see `sangam status`)",
    types_pb2.WAIT_REASON_TOO_LARGE: "no live worker can hold so long a canvas (see `sangam status`)",
}

OnText = Callable[[str], None]
OnNotice = Callable[[str], None]
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
    on_notice: OnNotice = lambda line: None,
    reconnect: Reconnect | None = None,
) -> GenerationOutput:
    """Run `request` at the gateway `address` (host:port); `on_text` gets the text piece by piece.

    `on_tokens` gets committed tokens, and with `include_revealed` in the request all others as they are revealed.

    `on_notice` gets a line for a person when the request waits for something that is not there.

    With `reconnect` a call that breaks is made again, unless no gateway was ever there; no text repeats.
    Raises `WireError` when it fails, `ConfigError` when it is no gateway that answers there; cancelling this cancels
    the request.
    """
    async with open_channel(address) as channel:
        stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = _GatewayCall(stub=stub, address=address, request=request, answer=_Answer(on_text, on_tokens, on_notice))
        if reconnect is None:
            await call.listen(timeout_s=timeout_s)
        else:
            tries = Reconnection(reconnect, channel, on_notice)
            await call.persist(reconnect, tries, timeout_s=timeout_s)
    return call.answer.output()


class _GatewayCall:
    """One request at one gateway, over one call or several."""

    def __init__(
        self,
        *,
        stub: inference_pb2_grpc.InferenceServiceAsyncStub,
        address: str,
        request: inference_pb2.GenerateRequest,
        answer: _Answer,
    ) -> None:
        self._stub = stub
        self._address = address
        self._request = inference_pb2.GenerateRequest()
        self._request.CopyFrom(request)
        self.answer = answer
        self._belongs_there = False

    async def listen(self, *, timeout_s: float | None, on_response: Callable[[], None] = lambda: None) -> None:
        """One call, up to its end; `on_response` is told of every response. Raises as `generate_at` does."""
        call = self._stub.Generate(self._request, timeout=timeout_s)
        try:
            async for response in call:
                on_response()
                self.answer.take(response)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                here = f"what answers at {self._address} is no gateway"
                raise ConfigError(f"--address: {here}; `sangam up` prints the gateway's address") from None
            raise self._explained(wire_error(error)) from None
        finally:
            call.cancel()

    async def persist(self, policy: Reconnect, tries: Reconnection, *, timeout_s: float | None) -> None:
        """As many calls as it takes, within `timeout_s` altogether."""
        loop = asyncio.get_running_loop()
        begun_at_s = loop.time()
        self._request.request_id = self._request.request_id or new_request_id()
        self._request.detach_grace_ms = round(policy.detach_grace_s * 1000)
        try:
            while True:
                left_s = None if timeout_s is None else begun_at_s + timeout_s - loop.time()
                if left_s is not None and left_s <= 0:
                    raise WireError(Reason.DEADLINE_EXCEEDED, "the deadline passed")
                self._request.from_position = len(self.answer.token_ids)
                self._request.committed_token_ids[:] = self.answer.token_ids
                try:
                    self._belongs_there = await tries.look(within_s=left_s)
                    await self.listen(timeout_s=left_s, on_response=tries.heard)
                    return
                except WireError as error:
                    if error.reason is not Reason.PEER_LOST:
                        raise
                    await tries.pause(error)
        except asyncio.CancelledError:
            await self._cancel()
            raise

    def _explained(self, error: WireError) -> WireError:
        """Say what a lost gateway means to someone at a terminal."""
        if error.reason is not Reason.PEER_LOST:
            return error
        if self.answer.begun:
            problem = f"the gateway at {self._address} went away in the middle of the answer"
        elif self._belongs_there:
            problem = f"the gateway at {self._address} does not answer"
        else:
            problem = f"no gateway answers at {self._address}: start one with 'sangam up', or use --local"
        return WireError(error.reason, problem)

    async def _cancel(self) -> None:
        """Tell the gateway that nobody comes back; if it cannot be told, its grace ends the request."""
        try:
            await self._stub.Cancel(
                inference_pb2.CancelRequest(request_id=self._request.request_id), timeout=_CANCEL_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return


class _Answer:
    """Gathers one request's responses."""

    def __init__(self, on_text: OnText, on_tokens: OnTokens, on_notice: OnNotice) -> None:
        self._on_text = on_text
        self._on_tokens = on_tokens
        self._on_notice = on_notice
        self._accepted = inference_pb2.Accepted()
        self._finished: inference_pb2.Finished | None = None
        self._token_ids: list[int] = []
        self._text: list[str] = []
        self.begun = False

    @property
    def token_ids(self) -> Sequence[int]:
        """Committed tokens that are here, from position 0."""
        return self._token_ids

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
            case "waiting":
                self._on_notice(f"waiting: {_WAITS.get(response.waiting.reason, 'no worker can take the request')}")
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
            carried_tokens=usage.carried_tokens,
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

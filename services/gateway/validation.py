"""From the wire to a checked request: every refusal names its field and happens before any compute."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from common.core.params import DEFAULT_BLOCK_LENGTH_TOKENS, CacheMode
from common.errors import InvalidPrompt, InvalidRequest
from common.generation_input import GenerationInput
from common.model_config import ModelConfig
from common.prompt import ChatMessage
from common.rpc.convert import cache_mode_from_proto, prompt_format_from_proto, reveal_strategy_from_proto
from sangam.v1 import inference_pb2, types_pb2
from services.gateway.transcript import View

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_ID_BYTES = 16
_MAX_TENANT_CHARACTERS = 128


def request_id_of(request: inference_pb2.GenerateRequest) -> str:
    """The client's id, or a fresh one that nobody can guess (128 random bits). Raises `InvalidRequest`."""
    if not request.request_id:
        return f"gen-{secrets.token_hex(_ID_BYTES)}"
    check_request_id(request.request_id)
    return request.request_id


def check_request_id(request_id: str) -> None:
    """Raise `InvalidRequest` unless a client may call a request so."""
    if not _REQUEST_ID.fullmatch(request_id):
        raise InvalidRequest(
            "request_id", "must be 1 to 128 letters, digits or . _ : - and begin with a letter or digit"
        )


def view_of(request: inference_pb2.GenerateRequest, *, model: ModelConfig, max_detach_grace_s: float) -> View:
    """What this call wants to see of its request; the grace is cut to the server's limit. Raises `InvalidRequest`."""
    if request.from_position > max(0, request.max_tokens):
        raise InvalidRequest("from_position", f"must be 0 to max_tokens ({request.max_tokens})")
    _check_carried(request, model)
    return View(
        from_position=request.from_position,
        carried_token_ids=tuple(request.committed_token_ids),
        include_revealed=request.include_revealed,
        detach_grace_s=min(request.detach_grace_ms / 1000, max_detach_grace_s),
    )


def _check_carried(request: inference_pb2.GenerateRequest, model: ModelConfig) -> None:
    """Raise `InvalidRequest` unless the tokens that the client brings along could be those of its request so far."""
    carried, field = request.committed_token_ids, "committed_token_ids"
    if carried and len(carried) != request.from_position:
        raise InvalidRequest(
            field, f"must hold from_position ({request.from_position}) ids or none, not {len(carried)}"
        )
    if len(carried) > model.max_canvas_tokens:
        raise InvalidRequest(
            field, f"{len(carried)} ids are more than the model's longest canvas of {model.max_canvas_tokens}"
        )
    for position, token in enumerate(carried):
        if token >= model.vocab_size_tokens:
            problem = f"id {token} at position {position} is outside the vocabulary 0..{model.vocab_size_tokens - 1}"
            raise InvalidRequest(field, problem)
        if token == model.mask_token_id:
            raise InvalidRequest(field, f"the mask id {token} at position {position} is no generated token")
        if token == model.eos_token_id and not request.ignore_eos and position + 1 < len(carried):
            raise InvalidRequest(field, f"must end with the end-of-text id {token} at position {position}")


def tenant_of(request: inference_pb2.GenerateRequest) -> str:
    """The client's tenant; the scheduler keeps it while the request lives. Raises `InvalidRequest`."""
    if len(request.tenant) > _MAX_TENANT_CHARACTERS:
        raise InvalidRequest("tenant", f"must be at most {_MAX_TENANT_CHARACTERS} characters")
    return request.tenant


def input_of(request: inference_pb2.GenerateRequest) -> GenerationInput:
    """The request in the project's own words, checked as far as that needs no model. Raises `InvalidRequest`."""
    prompt = request.WhichOneof("prompt")
    sampling = request.sampling
    wanted = GenerationInput(
        text=request.text if prompt == "text" else None,
        token_ids=tuple(request.token_ids.ids) if prompt == "token_ids" else None,
        messages=_messages_of(request.chat) if prompt == "chat" else None,
        prompt_format=prompt_format_from_proto(request.prompt_format),
        max_tokens=request.max_tokens,
        block_length_tokens=request.block_length_tokens or DEFAULT_BLOCK_LENGTH_TOKENS,
        cache_mode=_cache_mode_of(request),
        strategy=reveal_strategy_from_proto(sampling),
        temperature=sampling.temperature,
        seed=sampling.seed if sampling.HasField("seed") else None,
        ignore_eos=request.ignore_eos,
    )
    wanted.check()
    return wanted


def _messages_of(chat: inference_pb2.Chat) -> tuple[ChatMessage, ...]:
    return tuple(ChatMessage(role=message.role, content=message.content) for message in chat.messages)


def check_vocabulary(token_ids: Sequence[int], model: ModelConfig) -> None:
    """Raise `InvalidPrompt` for an id outside the model's vocabulary; the mask id may be named here."""
    for token in token_ids:
        if not 0 <= token < model.vocab_size_tokens:
            problem = f"id {token} is outside the vocabulary 0..{model.vocab_size_tokens - 1}"
            raise InvalidPrompt("token_ids", problem)


def _cache_mode_of(request: inference_pb2.GenerateRequest) -> CacheMode:
    unsaid = request.cache_mode == types_pb2.CACHE_MODE_UNSPECIFIED
    return CacheMode.DUAL if unsaid else cache_mode_from_proto(request.cache_mode)

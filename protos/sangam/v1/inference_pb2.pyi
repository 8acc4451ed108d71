from sangam.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PromptFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROMPT_FORMAT_UNSPECIFIED: _ClassVar[PromptFormat]
    PROMPT_FORMAT_PLAIN: _ClassVar[PromptFormat]
    PROMPT_FORMAT_CHAT: _ClassVar[PromptFormat]
PROMPT_FORMAT_UNSPECIFIED: PromptFormat
PROMPT_FORMAT_PLAIN: PromptFormat
PROMPT_FORMAT_CHAT: PromptFormat

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "text", "token_ids", "chat", "max_tokens", "block_length_tokens", "cache_mode", "sampling", "ignore_eos", "tenant", "priority", "include_revealed", "prompt_format", "from_position", "detach_grace_ms", "committed_token_ids")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_LENGTH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_MODE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_REVEALED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    FROM_POSITION_FIELD_NUMBER: _ClassVar[int]
    DETACH_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    text: str
    token_ids: TokenIds
    chat: Chat
    max_tokens: int
    block_length_tokens: int
    cache_mode: _types_pb2.CacheMode
    sampling: _types_pb2.SamplingParams
    ignore_eos: bool
    tenant: str
    priority: int
    include_revealed: bool
    prompt_format: PromptFormat
    from_position: int
    detach_grace_ms: int
    committed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., max_tokens: _Optional[int] = ..., block_length_tokens: _Optional[int] = ..., cache_mode: _Optional[_Union[_types_pb2.CacheMode, str]] = ..., sampling: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., ignore_eos: _Optional[bool] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., include_revealed: _Optional[bool] = ..., prompt_format: _Optional[_Union[PromptFormat, str]] = ..., from_position: _Optional[int] = ..., detach_grace_ms: _Optional[int] = ..., committed_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("accepted", "committed", "revealed", "finished", "waiting")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    REVEALED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    committed: Committed
    revealed: Revealed
    finished: Finished
    waiting: Waiting
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., revealed: _Optional[_Union[Revealed, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("request_id", "prompt_tokens", "canvas_tokens", "seed", "detach_grace_ms")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CANVAS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DETACH_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_tokens: int
    canvas_tokens: int
    seed: int
    detach_grace_ms: int
    def __init__(self, request_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., canvas_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., detach_grace_ms: _Optional[int] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: _types_pb2.WaitReason
    def __init__(self, reason: _Optional[_Union[_types_pb2.WaitReason, str]] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("from_position", "token_ids", "text")
    FROM_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    from_position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    def __init__(self, from_position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ...) -> None: ...

class Revealed(_message.Message):
    __slots__ = ("positions", "token_ids", "confidences")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    confidences: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, positions: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., confidences: _Optional[_Iterable[float]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("finish_reason", "usage", "blocks")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    finish_reason: _types_pb2.FinishReason
    usage: Usage
    blocks: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockPlacement]
    def __init__(self, finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., blocks: _Optional[_Iterable[_Union[_types_pb2.BlockPlacement, _Mapping]]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "prefill_forwards", "decode_forwards", "attempts", "cache_mode", "time_to_first_commit_s", "total_s", "carried_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FORWARDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_FORWARDS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CACHE_MODE_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_COMMIT_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    CARRIED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    prefill_forwards: int
    decode_forwards: int
    attempts: int
    cache_mode: _types_pb2.CacheMode
    time_to_first_commit_s: float
    total_s: float
    carried_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., prefill_forwards: _Optional[int] = ..., decode_forwards: _Optional[int] = ..., attempts: _Optional[int] = ..., cache_mode: _Optional[_Union[_types_pb2.CacheMode, str]] = ..., time_to_first_commit_s: _Optional[float] = ..., total_s: _Optional[float] = ..., carried_tokens: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("was_running",)
    WAS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    was_running: bool
    def __init__(self, was_running: _Optional[bool] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model_id", "family", "vocab_size_tokens", "max_canvas_tokens", "mask_token_id", "eos_token_id", "default_block_length_tokens", "has_chat_template")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CANVAS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MASK_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_BLOCK_LENGTH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    family: str
    vocab_size_tokens: int
    max_canvas_tokens: int
    mask_token_id: int
    eos_token_id: int
    default_block_length_tokens: int
    has_chat_template: bool
    def __init__(self, model_id: _Optional[str] = ..., family: _Optional[str] = ..., vocab_size_tokens: _Optional[int] = ..., max_canvas_tokens: _Optional[int] = ..., mask_token_id: _Optional[int] = ..., eos_token_id: _Optional[int] = ..., default_block_length_tokens: _Optional[int] = ..., has_chat_template: _Optional[bool] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("text", "token_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: TokenIds
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids", "text")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ...) -> None: ...

from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CacheMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_MODE_UNSPECIFIED: _ClassVar[CacheMode]
    CACHE_MODE_DUAL: _ClassVar[CacheMode]
    CACHE_MODE_PREFIX: _ClassVar[CacheMode]
    CACHE_MODE_NONE: _ClassVar[CacheMode]

class WorkerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_ROLE_UNSPECIFIED: _ClassVar[WorkerRole]
    WORKER_ROLE_PREFILL: _ClassVar[WorkerRole]
    WORKER_ROLE_DECODE: _ClassVar[WorkerRole]

class ServingMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVING_MODE_UNSPECIFIED: _ClassVar[ServingMode]
    SERVING_MODE_COLOCATED: _ClassVar[ServingMode]
    SERVING_MODE_DISAGGREGATED: _ClassVar[ServingMode]
    SERVING_MODE_HYBRID: _ClassVar[ServingMode]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]

class WaitReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_REASON_UNSPECIFIED: _ClassVar[WaitReason]
    WAIT_REASON_NO_WORKER: _ClassVar[WaitReason]
    WAIT_REASON_TOO_LARGE: _ClassVar[WaitReason]
CACHE_MODE_UNSPECIFIED: CacheMode
CACHE_MODE_DUAL: CacheMode
CACHE_MODE_PREFIX: CacheMode
CACHE_MODE_NONE: CacheMode
WORKER_ROLE_UNSPECIFIED: WorkerRole
WORKER_ROLE_PREFILL: WorkerRole
WORKER_ROLE_DECODE: WorkerRole
SERVING_MODE_UNSPECIFIED: ServingMode
SERVING_MODE_COLOCATED: ServingMode
SERVING_MODE_DISAGGREGATED: ServingMode
SERVING_MODE_HYBRID: ServingMode
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
WAIT_REASON_UNSPECIFIED: WaitReason
WAIT_REASON_NO_WORKER: WaitReason
WAIT_REASON_TOO_LARGE: WaitReason

class RandomReveal(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("confidence_threshold", "confidence_quota", "confidence_dynamic", "random", "temperature", "seed")
    CONFIDENCE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_QUOTA_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_DYNAMIC_FIELD_NUMBER: _ClassVar[int]
    RANDOM_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    confidence_threshold: float
    confidence_quota: int
    confidence_dynamic: float
    random: RandomReveal
    temperature: float
    seed: int
    def __init__(self, confidence_threshold: _Optional[float] = ..., confidence_quota: _Optional[int] = ..., confidence_dynamic: _Optional[float] = ..., random: _Optional[_Union[RandomReveal, _Mapping]] = ..., temperature: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class BlockAttempt(_message.Message):
    __slots__ = ("request_id", "block", "attempt")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    block: int
    attempt: int
    def __init__(self, request_id: _Optional[str] = ..., block: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class WorkerLife(_message.Message):
    __slots__ = ("worker_id", "incarnation")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class StepDelta(_message.Message):
    __slots__ = ("step", "positions", "token_ids", "confidences")
    STEP_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    step: int
    positions: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    confidences: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, step: _Optional[int] = ..., positions: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., confidences: _Optional[_Iterable[float]] = ...) -> None: ...

class BlockWork(_message.Message):
    __slots__ = ("attempt", "target_incarnation", "prompt_token_ids", "generated_token_ids", "max_tokens", "block_length_tokens", "cache_mode", "sampling", "ignore_eos", "canvas_generated_tokens")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TARGET_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_LENGTH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_MODE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    CANVAS_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    attempt: BlockAttempt
    target_incarnation: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    generated_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_tokens: int
    block_length_tokens: int
    cache_mode: CacheMode
    sampling: SamplingParams
    ignore_eos: bool
    canvas_generated_tokens: int
    def __init__(self, attempt: _Optional[_Union[BlockAttempt, _Mapping]] = ..., target_incarnation: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., generated_token_ids: _Optional[_Iterable[int]] = ..., max_tokens: _Optional[int] = ..., block_length_tokens: _Optional[int] = ..., cache_mode: _Optional[_Union[CacheMode, str]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., ignore_eos: _Optional[bool] = ..., canvas_generated_tokens: _Optional[int] = ...) -> None: ...

class BlockCompletion(_message.Message):
    __slots__ = ("prefill_forwards", "decode_forwards", "finish_reason")
    PREFILL_FORWARDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_FORWARDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    prefill_forwards: int
    decode_forwards: int
    finish_reason: FinishReason
    def __init__(self, prefill_forwards: _Optional[int] = ..., decode_forwards: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ...) -> None: ...

class KvHandle(_message.Message):
    __slots__ = ("attempt", "owner", "transport", "address", "layout_fingerprint", "canvas_tokens", "pages", "lease_ms")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CANVAS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    attempt: BlockAttempt
    owner: WorkerLife
    transport: str
    address: str
    layout_fingerprint: str
    canvas_tokens: int
    pages: int
    lease_ms: int
    def __init__(self, attempt: _Optional[_Union[BlockAttempt, _Mapping]] = ..., owner: _Optional[_Union[WorkerLife, _Mapping]] = ..., transport: _Optional[str] = ..., address: _Optional[str] = ..., layout_fingerprint: _Optional[str] = ..., canvas_tokens: _Optional[int] = ..., pages: _Optional[int] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class IterationReport(_message.Message):
    __slots__ = ("iteration", "duration_s", "decode_tokens", "prefill_tokens_admitted", "deficit_tokens", "free_pages", "active_decodes", "queued_prefills", "queued_prefill_tokens", "retained_blocks", "token_budget_tokens", "token_budget_adapts", "decode_gap_s", "wanted_blocks", "wanted_prefill_tokens")
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_ADMITTED_FIELD_NUMBER: _ClassVar[int]
    DEFICIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_DECODES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PREFILLS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETAINED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_ADAPTS_FIELD_NUMBER: _ClassVar[int]
    DECODE_GAP_S_FIELD_NUMBER: _ClassVar[int]
    WANTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WANTED_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    iteration: int
    duration_s: float
    decode_tokens: int
    prefill_tokens_admitted: int
    deficit_tokens: int
    free_pages: int
    active_decodes: int
    queued_prefills: int
    queued_prefill_tokens: int
    retained_blocks: int
    token_budget_tokens: int
    token_budget_adapts: bool
    decode_gap_s: float
    wanted_blocks: int
    wanted_prefill_tokens: int
    def __init__(self, iteration: _Optional[int] = ..., duration_s: _Optional[float] = ..., decode_tokens: _Optional[int] = ..., prefill_tokens_admitted: _Optional[int] = ..., deficit_tokens: _Optional[int] = ..., free_pages: _Optional[int] = ..., active_decodes: _Optional[int] = ..., queued_prefills: _Optional[int] = ..., queued_prefill_tokens: _Optional[int] = ..., retained_blocks: _Optional[int] = ..., token_budget_tokens: _Optional[int] = ..., token_budget_adapts: _Optional[bool] = ..., decode_gap_s: _Optional[float] = ..., wanted_blocks: _Optional[int] = ..., wanted_prefill_tokens: _Optional[int] = ...) -> None: ...

class BlockPlacement(_message.Message):
    __slots__ = ("block", "prefill_worker_id", "decode_worker_id", "overflow", "prefill_forwards", "decode_forwards", "attempts", "queue_s", "prefill_s", "transfer_s", "transfer_bytes", "decode_s", "transfer_exposed_s")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    PREFILL_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DECODE_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    OVERFLOW_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FORWARDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_FORWARDS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_EXPOSED_S_FIELD_NUMBER: _ClassVar[int]
    block: int
    prefill_worker_id: str
    decode_worker_id: str
    overflow: bool
    prefill_forwards: int
    decode_forwards: int
    attempts: int
    queue_s: float
    prefill_s: float
    transfer_s: float
    transfer_bytes: int
    decode_s: float
    transfer_exposed_s: float
    def __init__(self, block: _Optional[int] = ..., prefill_worker_id: _Optional[str] = ..., decode_worker_id: _Optional[str] = ..., overflow: _Optional[bool] = ..., prefill_forwards: _Optional[int] = ..., decode_forwards: _Optional[int] = ..., attempts: _Optional[int] = ..., queue_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., transfer_s: _Optional[float] = ..., transfer_bytes: _Optional[int] = ..., decode_s: _Optional[float] = ..., transfer_exposed_s: _Optional[float] = ...) -> None: ...

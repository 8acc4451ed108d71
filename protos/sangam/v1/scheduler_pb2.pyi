from sangam.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScheduleRequest(_message.Message):
    __slots__ = ("request_id", "prompt_token_ids", "max_tokens", "block_length_tokens", "cache_mode", "sampling", "ignore_eos", "tenant", "priority", "committed_token_ids", "shown", "idle")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_LENGTH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_MODE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_tokens: int
    block_length_tokens: int
    cache_mode: _types_pb2.CacheMode
    sampling: _types_pb2.SamplingParams
    ignore_eos: bool
    tenant: str
    priority: int
    committed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    shown: _types_pb2.StepDelta
    idle: bool
    def __init__(self, request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., max_tokens: _Optional[int] = ..., block_length_tokens: _Optional[int] = ..., cache_mode: _Optional[_Union[_types_pb2.CacheMode, str]] = ..., sampling: _Optional[_Union[_types_pb2.SamplingParams, _Mapping]] = ..., ignore_eos: _Optional[bool] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., committed_token_ids: _Optional[_Iterable[int]] = ..., shown: _Optional[_Union[_types_pb2.StepDelta, _Mapping]] = ..., idle: _Optional[bool] = ...) -> None: ...

class ScheduleResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[ScheduleEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[ScheduleEvent, _Mapping]]] = ...) -> None: ...

class ScheduleEvent(_message.Message):
    __slots__ = ("queued", "step", "block_committed", "finished", "waiting")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    queued: ScheduleQueued
    step: ScheduleStep
    block_committed: _types_pb2.BlockPlacement
    finished: ScheduleFinished
    waiting: ScheduleWaiting
    def __init__(self, queued: _Optional[_Union[ScheduleQueued, _Mapping]] = ..., step: _Optional[_Union[ScheduleStep, _Mapping]] = ..., block_committed: _Optional[_Union[_types_pb2.BlockPlacement, _Mapping]] = ..., finished: _Optional[_Union[ScheduleFinished, _Mapping]] = ..., waiting: _Optional[_Union[ScheduleWaiting, _Mapping]] = ...) -> None: ...

class ScheduleQueued(_message.Message):
    __slots__ = ("ahead",)
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    ahead: int
    def __init__(self, ahead: _Optional[int] = ...) -> None: ...

class ScheduleWaiting(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: _types_pb2.WaitReason
    def __init__(self, reason: _Optional[_Union[_types_pb2.WaitReason, str]] = ...) -> None: ...

class ScheduleStep(_message.Message):
    __slots__ = ("block", "delta")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    block: int
    delta: _types_pb2.StepDelta
    def __init__(self, block: _Optional[int] = ..., delta: _Optional[_Union[_types_pb2.StepDelta, _Mapping]] = ...) -> None: ...

class ScheduleFinished(_message.Message):
    __slots__ = ("finish_reason",)
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    finish_reason: _types_pb2.FinishReason
    def __init__(self, finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ...) -> None: ...

class CancelScheduleRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelScheduleResponse(_message.Message):
    __slots__ = ("was_running",)
    WAS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    was_running: bool
    def __init__(self, was_running: _Optional[bool] = ...) -> None: ...

class RegisterWorkerRequest(_message.Message):
    __slots__ = ("life", "role", "address", "kv_transport", "kv_address", "layout_fingerprint", "model_id", "pages_total", "page_size_tokens", "max_canvas_tokens", "token_budget_tokens", "max_batch_size", "max_prefill_tokens_per_batch", "fast_link_domain", "model_fingerprint", "least_term", "life_term")
    LIFE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KV_TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    KV_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    PAGES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CANVAS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_PREFILL_TOKENS_PER_BATCH_FIELD_NUMBER: _ClassVar[int]
    FAST_LINK_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LEAST_TERM_FIELD_NUMBER: _ClassVar[int]
    LIFE_TERM_FIELD_NUMBER: _ClassVar[int]
    life: _types_pb2.WorkerLife
    role: _types_pb2.WorkerRole
    address: str
    kv_transport: str
    kv_address: str
    layout_fingerprint: str
    model_id: str
    pages_total: int
    page_size_tokens: int
    max_canvas_tokens: int
    token_budget_tokens: int
    max_batch_size: int
    max_prefill_tokens_per_batch: int
    fast_link_domain: str
    model_fingerprint: str
    least_term: int
    life_term: int
    def __init__(self, life: _Optional[_Union[_types_pb2.WorkerLife, _Mapping]] = ..., role: _Optional[_Union[_types_pb2.WorkerRole, str]] = ..., address: _Optional[str] = ..., kv_transport: _Optional[str] = ..., kv_address: _Optional[str] = ..., layout_fingerprint: _Optional[str] = ..., model_id: _Optional[str] = ..., pages_total: _Optional[int] = ..., page_size_tokens: _Optional[int] = ..., max_canvas_tokens: _Optional[int] = ..., token_budget_tokens: _Optional[int] = ..., max_batch_size: _Optional[int] = ..., max_prefill_tokens_per_batch: _Optional[int] = ..., fast_link_domain: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., least_term: _Optional[int] = ..., life_term: _Optional[int] = ...) -> None: ...

class RegisterWorkerResponse(_message.Message):
    __slots__ = ("mode", "heartbeat_timeout_ms", "term")
    MODE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    mode: _types_pb2.ServingMode
    heartbeat_timeout_ms: int
    term: int
    def __init__(self, mode: _Optional[_Union[_types_pb2.ServingMode, str]] = ..., heartbeat_timeout_ms: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("life", "report", "draining", "kv_ended")
    LIFE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    KV_ENDED_FIELD_NUMBER: _ClassVar[int]
    life: _types_pb2.WorkerLife
    report: _types_pb2.IterationReport
    draining: bool
    kv_ended: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockAttempt]
    def __init__(self, life: _Optional[_Union[_types_pb2.WorkerLife, _Mapping]] = ..., report: _Optional[_Union[_types_pb2.IterationReport, _Mapping]] = ..., draining: _Optional[bool] = ..., kv_ended: _Optional[_Iterable[_Union[_types_pb2.BlockAttempt, _Mapping]]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("release_kv", "drain", "lost_peers")
    RELEASE_KV_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    LOST_PEERS_FIELD_NUMBER: _ClassVar[int]
    release_kv: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockAttempt]
    drain: bool
    lost_peers: _containers.RepeatedCompositeFieldContainer[_types_pb2.WorkerLife]
    def __init__(self, release_kv: _Optional[_Iterable[_Union[_types_pb2.BlockAttempt, _Mapping]]] = ..., drain: _Optional[bool] = ..., lost_peers: _Optional[_Iterable[_Union[_types_pb2.WorkerLife, _Mapping]]] = ...) -> None: ...

class GetClusterStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetClusterStateResponse(_message.Message):
    __slots__ = ("mode", "workers", "queued_blocks", "waiting_decode_blocks", "running_requests", "ended_requests", "overload_threshold_tokens", "parked_blocks", "replay_divergences", "overload_threshold_adapts")
    MODE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WAITING_DECODE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ENDED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    OVERLOAD_THRESHOLD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARKED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REPLAY_DIVERGENCES_FIELD_NUMBER: _ClassVar[int]
    OVERLOAD_THRESHOLD_ADAPTS_FIELD_NUMBER: _ClassVar[int]
    mode: _types_pb2.ServingMode
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    queued_blocks: int
    waiting_decode_blocks: int
    running_requests: int
    ended_requests: int
    overload_threshold_tokens: int
    parked_blocks: int
    replay_divergences: int
    overload_threshold_adapts: bool
    def __init__(self, mode: _Optional[_Union[_types_pb2.ServingMode, str]] = ..., workers: _Optional[_Iterable[_Union[WorkerState, _Mapping]]] = ..., queued_blocks: _Optional[int] = ..., waiting_decode_blocks: _Optional[int] = ..., running_requests: _Optional[int] = ..., ended_requests: _Optional[int] = ..., overload_threshold_tokens: _Optional[int] = ..., parked_blocks: _Optional[int] = ..., replay_divergences: _Optional[int] = ..., overload_threshold_adapts: _Optional[bool] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("life", "role", "address", "pages_total", "pages_free", "outstanding_prefill_tokens", "active_decodes", "report", "draining", "token_budget_tokens", "live_blocks", "length_sum_tokens")
    LIFE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PAGES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PAGES_FREE_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_DECODES_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LIVE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_SUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    life: _types_pb2.WorkerLife
    role: _types_pb2.WorkerRole
    address: str
    pages_total: int
    pages_free: int
    outstanding_prefill_tokens: int
    active_decodes: int
    report: _types_pb2.IterationReport
    draining: bool
    token_budget_tokens: int
    live_blocks: int
    length_sum_tokens: int
    def __init__(self, life: _Optional[_Union[_types_pb2.WorkerLife, _Mapping]] = ..., role: _Optional[_Union[_types_pb2.WorkerRole, str]] = ..., address: _Optional[str] = ..., pages_total: _Optional[int] = ..., pages_free: _Optional[int] = ..., outstanding_prefill_tokens: _Optional[int] = ..., active_decodes: _Optional[int] = ..., report: _Optional[_Union[_types_pb2.IterationReport, _Mapping]] = ..., draining: _Optional[bool] = ..., token_budget_tokens: _Optional[int] = ..., live_blocks: _Optional[int] = ..., length_sum_tokens: _Optional[int] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class DrainWorkerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

from sangam.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LocalPrefill(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoteKv(_message.Message):
    __slots__ = ("handle", "first")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    handle: _types_pb2.KvHandle
    first: _types_pb2.StepDelta
    def __init__(self, handle: _Optional[_Union[_types_pb2.KvHandle, _Mapping]] = ..., first: _Optional[_Union[_types_pb2.StepDelta, _Mapping]] = ...) -> None: ...

class NoKv(_message.Message):
    __slots__ = ("first",)
    FIRST_FIELD_NUMBER: _ClassVar[int]
    first: _types_pb2.StepDelta
    def __init__(self, first: _Optional[_Union[_types_pb2.StepDelta, _Mapping]] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("work", "local_prefill", "remote", "none")
    WORK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_PREFILL_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    NONE_FIELD_NUMBER: _ClassVar[int]
    work: _types_pb2.BlockWork
    local_prefill: LocalPrefill
    remote: RemoteKv
    none: NoKv
    def __init__(self, work: _Optional[_Union[_types_pb2.BlockWork, _Mapping]] = ..., local_prefill: _Optional[_Union[LocalPrefill, _Mapping]] = ..., remote: _Optional[_Union[RemoteKv, _Mapping]] = ..., none: _Optional[_Union[NoKv, _Mapping]] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[DecodeEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[DecodeEvent, _Mapping]]] = ...) -> None: ...

class DecodeEvent(_message.Message):
    __slots__ = ("kv_received", "step", "block_completed")
    KV_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    kv_received: KvReceived
    step: _types_pb2.StepDelta
    block_completed: _types_pb2.BlockCompletion
    def __init__(self, kv_received: _Optional[_Union[KvReceived, _Mapping]] = ..., step: _Optional[_Union[_types_pb2.StepDelta, _Mapping]] = ..., block_completed: _Optional[_Union[_types_pb2.BlockCompletion, _Mapping]] = ...) -> None: ...

class KvReceived(_message.Message):
    __slots__ = ("transfer_s", "transfer_bytes", "exposed_s", "first")
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    transfer_s: float
    transfer_bytes: int
    exposed_s: float
    first: _types_pb2.StepDelta
    def __init__(self, transfer_s: _Optional[float] = ..., transfer_bytes: _Optional[int] = ..., exposed_s: _Optional[float] = ..., first: _Optional[_Union[_types_pb2.StepDelta, _Mapping]] = ...) -> None: ...

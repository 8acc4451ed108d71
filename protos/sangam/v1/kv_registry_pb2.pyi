from sangam.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KvOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KV_OUTCOME_UNSPECIFIED: _ClassVar[KvOutcome]
    KV_OUTCOME_OK: _ClassVar[KvOutcome]
    KV_OUTCOME_NOT_FOUND: _ClassVar[KvOutcome]
    KV_OUTCOME_STALE_INCARNATION: _ClassVar[KvOutcome]
KV_OUTCOME_UNSPECIFIED: KvOutcome
KV_OUTCOME_OK: KvOutcome
KV_OUTCOME_NOT_FOUND: KvOutcome
KV_OUTCOME_STALE_INCARNATION: KvOutcome

class PublishKvRequest(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[_types_pb2.KvHandle]
    def __init__(self, entries: _Optional[_Iterable[_Union[_types_pb2.KvHandle, _Mapping]]] = ...) -> None: ...

class PublishKvResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[KvOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[KvOutcome, str]]] = ...) -> None: ...

class GetKvRequest(_message.Message):
    __slots__ = ("attempts",)
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    attempts: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockAttempt]
    def __init__(self, attempts: _Optional[_Iterable[_Union[_types_pb2.BlockAttempt, _Mapping]]] = ...) -> None: ...

class GetKvResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[_types_pb2.KvHandle]
    def __init__(self, entries: _Optional[_Iterable[_Union[_types_pb2.KvHandle, _Mapping]]] = ...) -> None: ...

class RenewKvRequest(_message.Message):
    __slots__ = ("owner", "attempts", "lease_ms")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    owner: _types_pb2.WorkerLife
    attempts: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockAttempt]
    lease_ms: int
    def __init__(self, owner: _Optional[_Union[_types_pb2.WorkerLife, _Mapping]] = ..., attempts: _Optional[_Iterable[_Union[_types_pb2.BlockAttempt, _Mapping]]] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class RenewKvResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[KvOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[KvOutcome, str]]] = ...) -> None: ...

class ReleaseKvRequest(_message.Message):
    __slots__ = ("owner", "attempts")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    owner: _types_pb2.WorkerLife
    attempts: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockAttempt]
    def __init__(self, owner: _Optional[_Union[_types_pb2.WorkerLife, _Mapping]] = ..., attempts: _Optional[_Iterable[_Union[_types_pb2.BlockAttempt, _Mapping]]] = ...) -> None: ...

class ReleaseKvResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[KvOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[KvOutcome, str]]] = ...) -> None: ...

class ReconcileKvRequest(_message.Message):
    __slots__ = ("owner", "held")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    owner: _types_pb2.WorkerLife
    held: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockAttempt]
    def __init__(self, owner: _Optional[_Union[_types_pb2.WorkerLife, _Mapping]] = ..., held: _Optional[_Iterable[_Union[_types_pb2.BlockAttempt, _Mapping]]] = ...) -> None: ...

class ReconcileKvResponse(_message.Message):
    __slots__ = ("unknown", "removed")
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    unknown: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockAttempt]
    removed: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockAttempt]
    def __init__(self, unknown: _Optional[_Iterable[_Union[_types_pb2.BlockAttempt, _Mapping]]] = ..., removed: _Optional[_Iterable[_Union[_types_pb2.BlockAttempt, _Mapping]]] = ...) -> None: ...

class FenceWorkerRequest(_message.Message):
    __slots__ = ("life",)
    LIFE_FIELD_NUMBER: _ClassVar[int]
    life: _types_pb2.WorkerLife
    def __init__(self, life: _Optional[_Union[_types_pb2.WorkerLife, _Mapping]] = ...) -> None: ...

class FenceWorkerResponse(_message.Message):
    __slots__ = ("removed_entries",)
    REMOVED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    removed_entries: int
    def __init__(self, removed_entries: _Optional[int] = ...) -> None: ...

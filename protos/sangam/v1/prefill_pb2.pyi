from sangam.v1 import types_pb2 as _types_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrefillRequest(_message.Message):
    __slots__ = ("work",)
    WORK_FIELD_NUMBER: _ClassVar[int]
    work: _types_pb2.BlockWork
    def __init__(self, work: _Optional[_Union[_types_pb2.BlockWork, _Mapping]] = ...) -> None: ...

class PrefillResponse(_message.Message):
    __slots__ = ("first", "kv", "completion")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_FIELD_NUMBER: _ClassVar[int]
    first: _types_pb2.StepDelta
    kv: _types_pb2.KvHandle
    completion: _types_pb2.BlockCompletion
    def __init__(self, first: _Optional[_Union[_types_pb2.StepDelta, _Mapping]] = ..., kv: _Optional[_Union[_types_pb2.KvHandle, _Mapping]] = ..., completion: _Optional[_Union[_types_pb2.BlockCompletion, _Mapping]] = ...) -> None: ...

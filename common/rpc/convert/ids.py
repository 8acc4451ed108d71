"""Names of things: block attempts and worker lives."""

from __future__ import annotations

from common.core.ids import BlockAttempt, RequestId, WorkerId, WorkerLife
from common.rpc.convert.fields import join, non_empty, positive
from sangam.v1 import types_pb2


def block_attempt_to_proto(attempt: BlockAttempt) -> types_pb2.BlockAttempt:
    """The message of `attempt`."""
    return types_pb2.BlockAttempt(request_id=attempt.request_id, block=attempt.block, attempt=attempt.attempt)


def block_attempt_from_proto(message: types_pb2.BlockAttempt, path: str = "attempt") -> BlockAttempt:
    """The attempt; raises InvalidRequest when it names no request."""
    request_id = non_empty(message.request_id, join(path, "request_id"))
    return BlockAttempt(request_id=RequestId(request_id), block=message.block, attempt=message.attempt)


def worker_life_to_proto(life: WorkerLife) -> types_pb2.WorkerLife:
    """The message of `life`."""
    return types_pb2.WorkerLife(worker_id=life.worker_id, incarnation=life.incarnation)


def worker_life_from_proto(message: types_pb2.WorkerLife, path: str = "life") -> WorkerLife:
    """The life; raises InvalidRequest when worker id or incarnation is not set."""
    worker_id = non_empty(message.worker_id, join(path, "worker_id"))
    incarnation = positive(message.incarnation, join(path, "incarnation"))
    return WorkerLife(worker_id=WorkerId(worker_id), incarnation=incarnation)

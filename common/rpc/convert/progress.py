"""What comes back from workers: steps, completions, placements, reports."""

from __future__ import annotations

import math
from itertools import pairwise

from common.core.effects import BlockPlacement
from common.core.work import BlockCompletion, IterationReport, StepDelta
from common.errors import InvalidRequest
from common.rpc.convert.enums import finish_reason_from_proto, finish_reason_to_proto
from common.rpc.convert.fields import duration, join, same_length
from sangam.v1 import types_pb2


def step_delta_to_proto(step: StepDelta) -> types_pb2.StepDelta:
    """The message of `step`; confidences are rounded to float32."""
    return types_pb2.StepDelta(
        step=step.step, positions=step.positions, token_ids=step.token_ids, confidences=step.confidences
    )


def step_delta_from_proto(message: types_pb2.StepDelta, path: str = "step") -> StepDelta:
    """The step; raises InvalidRequest unless its lists are parallel, positions ascend, confidences are 0 to 1."""
    same_length(len(message.positions), message.token_ids, join(path, "token_ids"))
    same_length(len(message.positions), message.confidences, join(path, "confidences"))
    if any(later <= earlier for earlier, later in pairwise(message.positions)):
        raise InvalidRequest(join(path, "positions"), "must ascend")
    if not all(math.isfinite(value) and 0 <= value <= 1 for value in message.confidences):
        raise InvalidRequest(join(path, "confidences"), "must be within [0, 1]")
    return StepDelta(
        step=message.step,
        positions=tuple(message.positions),
        token_ids=tuple(message.token_ids),
        confidences=tuple(message.confidences),
    )


def block_completion_to_proto(completion: BlockCompletion) -> types_pb2.BlockCompletion:
    """The message of `completion`."""
    return types_pb2.BlockCompletion(
        prefill_forwards=completion.prefill_forwards,
        decode_forwards=completion.decode_forwards,
        finish_reason=finish_reason_to_proto(completion.finish),
    )


def block_completion_from_proto(message: types_pb2.BlockCompletion, path: str = "completion") -> BlockCompletion:
    """The completion; raises InvalidRequest for an unknown finish reason."""
    return BlockCompletion(
        prefill_forwards=message.prefill_forwards,
        decode_forwards=message.decode_forwards,
        finish=finish_reason_from_proto(message.finish_reason, join(path, "finish_reason")),
    )


def iteration_report_to_proto(report: IterationReport) -> types_pb2.IterationReport:
    """The message of `report`."""
    return types_pb2.IterationReport(
        iteration=report.iteration,
        duration_s=report.duration_s,
        decode_tokens=report.decode_tokens,
        prefill_tokens_admitted=report.prefill_tokens_admitted,
        deficit_tokens=report.deficit_tokens,
        free_pages=report.free_pages,
        active_decodes=report.active_decodes,
        queued_prefills=report.queued_prefills,
        queued_prefill_tokens=report.queued_prefill_tokens,
        retained_blocks=report.retained_blocks,
        token_budget_tokens=report.token_budget_tokens,
        token_budget_adapts=report.token_budget_adapts,
        decode_gap_s=report.decode_gap_s,
        wanted_blocks=report.wanted_blocks,
        wanted_prefill_tokens=report.wanted_prefill_tokens,
    )


def iteration_report_from_proto(message: types_pb2.IterationReport, path: str = "report") -> IterationReport:
    """The report; raises InvalidRequest for a duration that is none."""
    return IterationReport(
        iteration=message.iteration,
        duration_s=duration(message.duration_s, join(path, "duration_s")),
        decode_tokens=message.decode_tokens,
        prefill_tokens_admitted=message.prefill_tokens_admitted,
        deficit_tokens=message.deficit_tokens,
        free_pages=message.free_pages,
        active_decodes=message.active_decodes,
        queued_prefills=message.queued_prefills,
        queued_prefill_tokens=message.queued_prefill_tokens,
        retained_blocks=message.retained_blocks,
        token_budget_tokens=message.token_budget_tokens,
        token_budget_adapts=message.token_budget_adapts,
        decode_gap_s=duration(message.decode_gap_s, join(path, "decode_gap_s")),
        wanted_blocks=message.wanted_blocks,
        wanted_prefill_tokens=message.wanted_prefill_tokens,
    )


def block_placement_to_proto(placement: BlockPlacement) -> types_pb2.BlockPlacement:
    """The message of `placement`; no decode worker is the empty name."""
    return types_pb2.BlockPlacement(
        block=placement.block,
        prefill_worker_id=placement.prefill_worker_id,
        decode_worker_id=placement.decode_worker_id or "",
        overflow=placement.overflow,
        prefill_forwards=placement.prefill_forwards,
        decode_forwards=placement.decode_forwards,
        attempts=placement.attempts,
        queue_s=placement.queue_s,
        prefill_s=placement.prefill_s,
        transfer_s=placement.transfer_s,
        transfer_exposed_s=placement.transfer_exposed_s,
        transfer_bytes=placement.transfer_bytes,
        decode_s=placement.decode_s,
    )


def block_placement_from_proto(message: types_pb2.BlockPlacement, path: str = "placement") -> BlockPlacement:
    """The placement; raises InvalidRequest for durations that are none."""
    return BlockPlacement(
        block=message.block,
        prefill_worker_id=message.prefill_worker_id,
        decode_worker_id=message.decode_worker_id or None,
        overflow=message.overflow,
        prefill_forwards=message.prefill_forwards,
        decode_forwards=message.decode_forwards,
        attempts=message.attempts,
        queue_s=duration(message.queue_s, join(path, "queue_s")),
        prefill_s=duration(message.prefill_s, join(path, "prefill_s")),
        transfer_s=duration(message.transfer_s, join(path, "transfer_s")),
        transfer_exposed_s=duration(message.transfer_exposed_s, join(path, "transfer_exposed_s")),
        transfer_bytes=message.transfer_bytes,
        decode_s=duration(message.decode_s, join(path, "decode_s")),
    )

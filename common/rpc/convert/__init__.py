"""Proto <-> dataclass: `X_to_proto(x)` and `X_from_proto(message)` for every core dataclass X that travels.

`..._from_proto` trusts nothing: what a dataclass could not hold, or the core would trip over, raises InvalidRequest
naming the field by its path in the message ("work.attempt.request_id").
"""

from __future__ import annotations

from common.rpc.convert.cluster import cluster_view_to_proto, worker_spec_from_proto, worker_spec_to_proto
from common.rpc.convert.enums import (
    cache_mode_from_proto,
    cache_mode_to_proto,
    finish_reason_from_proto,
    finish_reason_to_proto,
    prompt_format_from_proto,
    prompt_format_to_proto,
    role_from_proto,
    role_to_proto,
    serving_mode_from_proto,
    serving_mode_to_proto,
)
from common.rpc.convert.ids import (
    block_attempt_from_proto,
    block_attempt_to_proto,
    worker_life_from_proto,
    worker_life_to_proto,
)
from common.rpc.convert.kv import (
    kv_handle_from_proto,
    kv_handle_to_proto,
    kv_received_from_proto,
    kv_received_to_proto,
    kv_source_from_proto,
    kv_source_to_proto,
)
from common.rpc.convert.progress import (
    block_completion_from_proto,
    block_completion_to_proto,
    block_placement_from_proto,
    block_placement_to_proto,
    iteration_report_from_proto,
    iteration_report_to_proto,
    step_delta_from_proto,
    step_delta_to_proto,
)
from common.rpc.convert.requests import (
    block_work_from_proto,
    block_work_to_proto,
    request_spec_from_proto,
    request_spec_to_proto,
    reveal_strategy_from_proto,
    sampling_params_from_proto,
    sampling_params_to_proto,
)

__all__ = [
    "block_attempt_from_proto",
    "block_attempt_to_proto",
    "block_completion_from_proto",
    "block_completion_to_proto",
    "block_placement_from_proto",
    "block_placement_to_proto",
    "block_work_from_proto",
    "block_work_to_proto",
    "cache_mode_from_proto",
    "cache_mode_to_proto",
    "cluster_view_to_proto",
    "finish_reason_from_proto",
    "finish_reason_to_proto",
    "iteration_report_from_proto",
    "iteration_report_to_proto",
    "kv_handle_from_proto",
    "kv_handle_to_proto",
    "kv_received_from_proto",
    "kv_received_to_proto",
    "kv_source_from_proto",
    "kv_source_to_proto",
    "prompt_format_from_proto",
    "prompt_format_to_proto",
    "request_spec_from_proto",
    "request_spec_to_proto",
    "reveal_strategy_from_proto",
    "role_from_proto",
    "role_to_proto",
    "sampling_params_from_proto",
    "sampling_params_to_proto",
    "serving_mode_from_proto",
    "serving_mode_to_proto",
    "step_delta_from_proto",
    "step_delta_to_proto",
    "worker_life_from_proto",
    "worker_life_to_proto",
    "worker_spec_from_proto",
    "worker_spec_to_proto",
]

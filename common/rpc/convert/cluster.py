"""Workers as they declare themselves, and the cluster as the scheduler sees it."""

from __future__ import annotations

from common.core.cluster import ClusterView, WorkerSpec, WorkerView
from common.core.defaults import DEFAULT_MAX_PREFILL_TOKENS_PER_BATCH
from common.rpc.convert.enums import role_from_proto, role_to_proto, serving_mode_to_proto
from common.rpc.convert.fields import non_empty, positive, require
from common.rpc.convert.ids import worker_life_from_proto, worker_life_to_proto
from common.rpc.convert.progress import iteration_report_to_proto
from sangam.v1 import scheduler_pb2


def worker_spec_to_proto(spec: WorkerSpec) -> scheduler_pb2.RegisterWorkerRequest:
    """The message of `spec`."""
    return scheduler_pb2.RegisterWorkerRequest(
        life=worker_life_to_proto(spec.life),
        role=role_to_proto(spec.role),
        address=spec.address,
        kv_transport=spec.kv_transport,
        kv_address=spec.kv_address,
        layout_fingerprint=spec.layout_fingerprint,
        model_id=spec.model_id,
        pages_total=spec.pages_total,
        page_size_tokens=spec.page_size_tokens,
        max_canvas_tokens=spec.max_canvas_tokens,
        token_budget_tokens=spec.token_budget_tokens,
        max_batch_size=spec.max_batch_size,
        max_prefill_tokens_per_batch=spec.max_prefill_tokens_per_batch,
        fast_link_domain=spec.fast_link_domain,
        model_fingerprint=spec.model_fingerprint,
    )


def worker_spec_from_proto(message: scheduler_pb2.RegisterWorkerRequest) -> WorkerSpec:
    """The worker; raises InvalidRequest naming what is missing. Only the data plane may be absent."""
    return WorkerSpec(
        life=worker_life_from_proto(message.life, require(message, "life", "")),
        role=role_from_proto(message.role),
        address=non_empty(message.address, "address"),
        kv_transport=message.kv_transport,
        kv_address=message.kv_address,
        layout_fingerprint=non_empty(message.layout_fingerprint, "layout_fingerprint"),
        model_id=non_empty(message.model_id, "model_id"),
        pages_total=positive(message.pages_total, "pages_total"),
        page_size_tokens=positive(message.page_size_tokens, "page_size_tokens"),
        max_canvas_tokens=positive(message.max_canvas_tokens, "max_canvas_tokens"),
        token_budget_tokens=positive(message.token_budget_tokens, "token_budget_tokens"),
        max_batch_size=positive(message.max_batch_size, "max_batch_size"),
        max_prefill_tokens_per_batch=message.max_prefill_tokens_per_batch or DEFAULT_MAX_PREFILL_TOKENS_PER_BATCH,
        fast_link_domain=message.fast_link_domain,
        model_fingerprint=message.model_fingerprint,
    )


def cluster_view_to_proto(view: ClusterView) -> scheduler_pb2.GetClusterStateResponse:
    """The message of `view`."""
    return scheduler_pb2.GetClusterStateResponse(
        mode=serving_mode_to_proto(view.mode),
        workers=[_worker_state(worker) for worker in view.workers],
        queued_blocks=view.queued_blocks,
        waiting_decode_blocks=view.waiting_decode_blocks,
        running_requests=view.running_requests,
        ended_requests=view.ended_requests,
        overload_threshold_tokens=view.overload_threshold_tokens,
        parked_blocks=view.parked_blocks,
        replay_divergences=view.replay_divergences,
        overload_threshold_adapts=view.overload_threshold_adapts,
    )


def _worker_state(worker: WorkerView) -> scheduler_pb2.WorkerState:
    return scheduler_pb2.WorkerState(
        life=worker_life_to_proto(worker.spec.life),
        role=role_to_proto(worker.spec.role),
        address=worker.spec.address,
        pages_total=worker.spec.pages_total,
        pages_free=worker.pages_free,
        outstanding_prefill_tokens=worker.outstanding_prefill_tokens,
        active_decodes=worker.active_decodes,
        report=None if worker.report is None else iteration_report_to_proto(worker.report),
        draining=worker.draining,
        token_budget_tokens=worker.spec.token_budget_tokens,
        live_blocks=worker.live_blocks,
        length_sum_tokens=worker.length_sum_tokens,
    )

"""What `python -m services.prefill_worker` and `python -m services.decode_worker` run."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from common.checkpoint import CheckpointIndex, check_checkpoint
from common.config import WorkerConfig
from common.config_values import AUTO
from common.core.ids import Role
from common.core.kv_layout import DTYPE_BYTES, default_dtype
from common.rpc.service import run_service
from common.worker.forward_watch import ForwardStuck
from common.worker.leaving import leave_process
from common.worker.loading import load_unless_stopped
from common.worker.pool_size import auto_pages, pool_bytes

if TYPE_CHECKING:
    from common.worker.app import WorkerApp

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""How long the forward thread may keep the interpreter from the event loop (p99 of an RPC: 20 to 4 ms, measured)."""


def run_worker(role: Role, argv: Sequence[str] | None = None) -> None:
    """Be a worker of that role until SIGTERM. A user's mistake is one line on stderr and exit code 2.

    A forward that does not end, and a load given up for a SIGTERM, leave a thread behind that nothing can end: then
    the process ends without Python's winding down, with code 1 or 0.
    """
    served = True

    async def main(config: WorkerConfig, stop: asyncio.Event) -> None:
        nonlocal served
        served = await _serve(role, config, stop)

    try:
        run_service(f"{role.value}_worker", WorkerConfig, main, argv)
    except ExceptionGroup as group:
        if group.subgroup(ForwardStuck) is None:
            raise
        leave_process(1)
    if not served:
        leave_process(0)


async def _serve(role: Role, config: WorkerConfig, stop: asyncio.Event) -> bool:
    """Check the checkpoint, load it, serve. Nothing listens before the engine is there; False: stopped before that."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    make_app = await load_unless_stopped(lambda: _load(role, config), stop)
    if make_app is None:
        log.info("told to stop before the model was loaded")
        return False
    # A full collection over what torch's import left takes 85 ms, for every thread; all of it stays anyway.
    gc.collect()
    gc.freeze()
    await make_app().run(stop)
    return True


def _load(role: Role, config: WorkerConfig) -> Callable[[], WorkerApp]:
    """All that takes long before a worker serves."""
    index = check_checkpoint(config.model_dir)
    # torch takes seconds to import: not before the checkpoint is known to be good.
    import torch

    from common.engine.engine import Engine
    from common.worker.app import WorkerApp

    if config.torch_threads:
        torch.set_num_threads(config.torch_threads)
    dtype = _dtype(config)
    engine = Engine.load(
        config.model_dir,
        device=config.device,
        dtype=dtype,
        num_pages=config.kv_pages or _auto_pages(config, dtype, index),
        page_size_tokens=config.page_size_tokens,
    )
    return functools.partial(WorkerApp, role=role, config=config, engine=engine)


def _dtype(config: WorkerConfig) -> str:
    return default_dtype(config.device) if config.dtype == AUTO else config.dtype


def _auto_pages(config: WorkerConfig, dtype: str, index: CheckpointIndex) -> int:
    weights = sum(math.prod(tensor.shape) for tensor in index.tensors.values()) * DTYPE_BYTES[dtype]
    return auto_pages(
        model=index.config,
        dtype=dtype,
        page_size_tokens=config.page_size_tokens,
        max_batch_size=config.max_batch_size,
        pool_bytes=pool_bytes(weights_bytes=weights, free_bytes=_free_bytes(config.device)),
    )


def _free_bytes(device: str) -> int | None:
    """Free memory of a GPU in bytes; None on a CPU, and for a device that is not there (the engine will say so)."""
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        return None
    return torch.cuda.mem_get_info(torch.device(device))[0]

"""Engine and K/V checks on a CUDA device, by hand: `python -m tests.gpu.check_gpu [cuda:N]`.

Goldens token for token and forward for forward, full logits, and batched = solo bitwise, all in float32; then batched =
solo in bfloat16, and K/V between two pools. Exit code 0: all hold, 1: some do not, 2: no CUDA device here. The suite
runs the same checks with `make test ARGS='-m gpu'`, and leaves them out without.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from common.clock import MonotonicClock
from common.core.ids import BlockAttempt, RequestId, WorkerId, WorkerLife
from common.core.kv_layout import KvLayout
from common.core.work import KvHandle
from common.engine.engine import Engine
from common.engine.generator import LocalGenerator
from common.engine.kv_pool import KvPool
from common.engine.randomness import uniform
from common.transport.factory import make_transport
from common.worker.kv_serving import KvServing
from common.worker.kv_staging import KvStaging
from common.worker.pool_sink import PoolSink
from tests.engine.checkpoints import GOLDEN_DIR, GOLDEN_NAMES, write_checkpoint
from tests.engine.golden import full_logits, golden_runs
from tests.engine.runs import random_request
from tests.engine.test_batch_invariance import assert_same, run_batched, run_solo

WIDE = {"d_model": 512, "n_heads": 8, "n_kv_heads": 2, "mlp_hidden_size": 1376, "n_layers": 4}


def check_full_logits(device: str) -> None:
    """Full-canvas logits within 1e-4 of the references."""
    for name in GOLDEN_NAMES:
        canvas, expected = full_logits(name)
        difference = (load(GOLDEN_DIR / name, device, "float32").canvas_logits(canvas) - expected).abs().max().item()
        assert difference < 1e-4, f"{name}: logits differ by {difference}"


def check_goldens(device: str) -> None:
    """Every golden run: tokens and forwards."""
    engines = {name: load(GOLDEN_DIR / name, device, "float32") for name in GOLDEN_NAMES}
    for run in golden_runs():
        result = LocalGenerator(engines[run.name]).run(run.spec)
        assert run.spec.prompt_token_ids + result.token_ids == run.canvas, f"{run.label}: tokens differ"
        assert result.prefill_forwards + result.decode_forwards == run.forwards, f"{run.label}: forwards differ"


def check_batches_float32(device: str) -> None:
    """Batched = solo, bitwise, float32."""
    _check_batches(device, "float32")


def check_batches_bfloat16(device: str) -> None:
    """Batched = solo, bitwise, bfloat16."""
    _check_batches(device, "bfloat16")


def check_randomness(device: str) -> None:
    """Counter-based uniforms are the CPU's, bit for bit."""
    keys = torch.arange(-50, 50, dtype=torch.int64) * 0x1234_5678_9ABC
    assert torch.equal(uniform(keys, 4096), uniform(keys.to(device), 4096).cpu()), "uniform draws differ"


def check_kv_transfer(device: str) -> None:
    """K/V moves between two pools of the device over tcp, ucx and auto, while its layers are still being computed."""
    for kind in ("tcp", "ucx", "auto"):
        asyncio.run(_transfer(device, kind))


def check_kv_beside_a_forward(device: str) -> None:
    """K/V of a layer that is computed moves while the device is busy with what comes next."""
    asyncio.run(_transfer(device, "tcp"))  # what is allocated once must not count
    asyncio.run(_transfer(device, "tcp", busy=_Busy(torch.device(device))))


CHECKS: tuple[Callable[[str], None], ...] = (
    check_randomness,
    check_full_logits,
    check_goldens,
    check_batches_float32,
    check_batches_bfloat16,
    check_kv_transfer,
    check_kv_beside_a_forward,
)


class _Busy:
    """A second of work or more for the stream that forwards run on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._matrix = torch.randn(4096, 4096, device=device)
        self._ended = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves its constructor untyped

    def begin(self) -> None:
        """Queue it."""
        for _ in range(500):
            torch.mm(self._matrix, self._matrix)
        self._ended.record(torch.cuda.current_stream(self._device))

    @property
    def ended(self) -> bool:
        """Whether the device has done it all."""
        return bool(self._ended.query())  # type: ignore[no-untyped-call]  # as above


class _WatchedSink(PoolSink):
    """Tells when its first part has arrived."""

    def __init__(self, staging: KvStaging, page_ids: tuple[int, ...]) -> None:
        super().__init__(staging, page_ids)
        self.has_some = asyncio.Event()

    async def complete(self, layer: int) -> None:
        await super().complete(layer)
        self.has_some.set()


async def _transfer(device: str, kind: str, busy: _Busy | None = None) -> None:
    layout = KvLayout(
        model_id="m",
        weights_fingerprint="w",
        dtype="bfloat16",
        page_size_tokens=16,
        n_layers=8,
        n_kv_heads=4,
        head_dim=128,
    )
    source, target = (KvPool(layout=layout, num_pages=64, device=torch.device(device)) for _ in range(2))
    pages, attempt = tuple(random.Random(3).sample(range(64), 20)), BlockAttempt(RequestId("r"), 0, 0)
    life, staging = WorkerLife(WorkerId("p"), 1), KvStaging(source)
    serving = KvServing(
        staging=staging,
        clock=MonotonicClock(),
        life=lambda: life,
        on_send_started=lambda _: None,
        on_send_ended=lambda _: None,
        on_delivered=lambda _: None,
    )
    owner, reader = make_transport(kind), make_transport(kind)
    handle = KvHandle(
        attempt=attempt,
        owner=life,
        transport=owner.name,
        address=await owner.listen("127.0.0.1", serving),
        layout_fingerprint=layout.fingerprint,
        canvas_tokens=320,
        pages=20,
        lease_s=30.0,
    )
    serving.announce(attempt, pages)
    with _WatchedSink(KvStaging(target), pages) as sink:
        fetch = asyncio.create_task(reader.fetch(handle=handle, sink=sink, timeout_s=30.0))
        for layer in range(layout.n_layers):
            source.tensor[layer].normal_()
            serving.layer_computed([attempt], layer, staging.fence())
            await asyncio.sleep(0)
            if busy is not None and layer == 0:
                busy.begin()
                await sink.has_some.wait()
                assert not busy.ended, "the transfer has waited for the device"
        serving.offer(attempt, pages, 320, MonotonicClock().now() + 30.0)
        serving.first_revealed(attempt, b"first")
        await fetch
    chosen = list(pages)
    assert torch.equal(source.tensor[:, :, chosen], target.tensor[:, :, chosen]), f"{kind}: other bytes arrived"
    await reader.aclose()
    await owner.aclose()


def load(model_dir: Path, device: str, dtype: str) -> Engine:
    """A checkpoint on the device, with room for a batch."""
    return Engine.load(model_dir, device=device, dtype=dtype, num_pages=256)


def _check_batches(device: str, dtype: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        folders = [GOLDEN_DIR / name for name in GOLDEN_NAMES]
        folders.append(write_checkpoint(Path(folder), "llada-gqa", **WIDE))
        for model_dir in folders:
            engine = load(model_dir, device, dtype)
            rng = random.Random(1)
            specs = [random_request(rng, f"r{number}", vocab=500) for number in range(10)]
            solo = run_solo(engine, specs, threads=1)
            assert_same(solo, run_batched(engine, specs, threads=1, rng=rng))


def main(arguments: list[str]) -> int:
    """Run every check; print one line for each."""
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was checked")
        return 2
    device = arguments[0] if arguments else "cuda"
    failed = 0
    for check in CHECKS:
        started = time.monotonic()
        try:
            check(device)
            outcome = "ok"
        except Exception as error:
            # Whatever fails, and in whatever way: the other checks are run too.
            outcome = f"FAILED {type(error).__name__}: {error}"
            failed += 1
        print(f"{outcome:<8} {check.__doc__} ({time.monotonic() - started:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

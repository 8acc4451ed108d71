"""One model on one device: opens blocks, steps a mixed batch of them, keeps their K/V in its pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from common.checkpoint import check_checkpoint, weights_fingerprint
from common.core.ids import BlockAttempt, RequestId
from common.core.kv_layout import DTYPE_BYTES, KvLayout, default_dtype
from common.core.params import CacheMode, ConfidenceQuota, SamplingParams
from common.core.work import StepDelta
from common.engine.attention import AttentionBackend, SdpaBackend
from common.engine.batch import BlockState, pack
from common.engine.invariance import RowPlan
from common.engine.kv_pool import KvPool
from common.engine.loader import load_weights
from common.engine.models.layers import RotaryTable
from common.engine.models.transformer import Transformer, select_rows
from common.engine.sampler import SampledBlock, sample
from common.errors import ConfigError
from common.model_config import ModelConfig

__all__ = ["BlockState", "Engine", "StepResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one forward revealed for one item: parallel tuples, positions generated-relative and ascending.

    `logits` is None unless asked for: [positions masked before the step, ascending; vocabulary], on the host.
    """

    step: int
    is_prefill: bool
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    confidences: tuple[float, ...]
    logits: Tensor | None = None

    @property
    def delta(self) -> StepDelta:
        """The same as it travels between services."""
        return StepDelta(step=self.step, positions=self.positions, token_ids=self.tokens, confidences=self.confidences)


class Engine:
    """Not thread-safe: one thread at a time calls it. Never touches torch's global random state."""

    config: ModelConfig
    layout: KvLayout
    pool: KvPool

    def __init__(self, *, config: ModelConfig, pool: KvPool, transformer: Transformer, row_plan: RowPlan) -> None:
        self.config = config
        self.pool = pool
        self.layout = pool.layout
        self._transformer = transformer
        self._row_plan = row_plan

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        device: str,
        dtype: str | None,
        num_pages: int,
        page_size_tokens: int = 16,
        backend: AttentionBackend | None = None,
    ) -> Engine:
        """Load a checkpoint folder. `device` is "cpu", "cuda" or "cuda:N"; dtype None is `default_dtype`.

        Raises `CheckpointError` naming file and tensor, `ConfigError` for a device, dtype or pool that cannot be had.
        """
        place = _device(device)
        dtype = dtype or default_dtype(place.type)
        if dtype not in DTYPE_BYTES:
            raise ConfigError(f"dtype: {dtype!r} is not one of {', '.join(DTYPE_BYTES)}")
        index = check_checkpoint(model_dir)
        config = index.config
        layout = KvLayout(
            model_id=config.model_id,
            weights_fingerprint=weights_fingerprint(model_dir),
            dtype=dtype,
            page_size_tokens=page_size_tokens,
            n_layers=config.n_layers,
            n_kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
        )
        pool = KvPool(layout=layout, num_pages=num_pages, device=place)
        row_plan = RowPlan.for_device(place)
        transformer = Transformer(
            config=config,
            weights=load_weights(index, device=place, dtype=getattr(torch, dtype)),
            rotary=RotaryTable(
                head_dim=config.head_dim,
                theta=config.rope_theta,
                max_tokens=min(config.max_canvas_tokens, num_pages * page_size_tokens),
                full_precision=config.rope_full_precision,
                device=place,
            ),
            backend=backend or SdpaBackend(),
            row_plan=row_plan,
        )
        return cls(config=config, pool=pool, transformer=transformer, row_plan=row_plan)

    def open_block(
        self,
        *,
        attempt: BlockAttempt,
        prompt_token_ids: Sequence[int],
        generated_token_ids: Sequence[int],
        canvas_tokens: int,
        block_length_tokens: int,
        block: int,
        cache_mode: CacheMode,
        sampling: SamplingParams,
        page_ids: Sequence[int],
        revealed: Mapping[int, int] | None = None,
        next_step: int = 0,
    ) -> BlockState:
        """Build the canvas of one block attempt: prompt, finished blocks, then masks, with `revealed` filled in.

        `revealed` maps generated-relative positions of this block to tokens. `next_step` above 0 goes on from another
        worker's prefill, whose K/V must be in `page_ids` (cache mode NONE needs none). Pages stay the caller's.
        """
        assert block == attempt.block, f"{attempt} opened as block {block}"
        assert len(generated_token_ids) == block * block_length_tokens, f"{attempt}: earlier blocks are incomplete"
        start = len(prompt_token_ids) + len(generated_token_ids)
        assert start + block_length_tokens <= canvas_tokens <= self.config.max_canvas_tokens, f"{attempt}: canvas"
        filled = [*prompt_token_ids, *generated_token_ids]
        canvas = torch.full((canvas_tokens,), self.config.mask_token_id, dtype=torch.int64)
        canvas[:start] = torch.tensor(filled, dtype=torch.int64)
        masked = set(range(start, start + block_length_tokens))
        for position, token in (revealed or {}).items():
            index = len(prompt_token_ids) + position
            assert index in masked, f"{attempt}: position {position} is not in block {block}"
            masked.discard(index)
            canvas[index] = token
        return BlockState(
            attempt=attempt,
            prompt_tokens=len(prompt_token_ids),
            canvas=canvas.to(self.pool.tensor.device),
            slots=self.pool.slots_of(page_ids, canvas_tokens),
            block_length_tokens=block_length_tokens,
            cache_mode=cache_mode,
            sampling=sampling,
            masked=sorted(masked),
            next_step=next_step,
        )

    @torch.inference_mode()
    def step(
        self,
        items: Sequence[BlockState],
        *,
        on_layer: Callable[[int], None] | None = None,
        keep_logits: bool = False,
    ) -> list[StepResult]:
        """Run one packed forward over every item's next step and reveal tokens; results are in the items' order.

        Each item needs a masked position, and no two may be the same block. `on_layer(i)` is called when layer i's K/V
        of the batch is in the pool.
        """
        if not items:
            return []
        assert len({item.attempt for item in items}) == len(items), "one block twice in a batch"
        assert all(item.masked for item in items), "a block without masked positions has no next step"
        logits = self._logits(items, on_layer)
        return self._reveal(items, logits, keep_logits=keep_logits)

    @torch.inference_mode()
    def canvas_logits(self, token_ids: Sequence[int]) -> Tensor:
        """Raw logits of every row of a canvas (float32 [canvas, vocabulary], on the host): for scoring and checks.

        Row j is the model's j-th output: of shifted models the prediction of position j + 1. Uses the pool's first
        pages, so nothing else may be open.
        """
        state = self.open_block(
            attempt=BlockAttempt(RequestId("canvas"), 0, 0),
            prompt_token_ids=token_ids,
            generated_token_ids=(),
            canvas_tokens=len(token_ids),
            block_length_tokens=0,
            block=0,
            cache_mode=CacheMode.NONE,
            sampling=SamplingParams(strategy=ConfidenceQuota(1), temperature=0.0, seed=0),
            page_ids=range(self.pool.pages_for(len(token_ids))),
        )
        batch = pack([state], lookback_tokens=0, row_plan=self._row_plan)
        rows = self._transformer.forward(batch, self.pool, None)
        return self._transformer.logits(rows)[: len(token_ids)].float().cpu()

    def _logits(self, items: Sequence[BlockState], on_layer: Callable[[int], None] | None) -> Tensor:
        """Logits of every masked position of every item, in order: [sampled, vocabulary] on the device."""
        batch = pack(items, lookback_tokens=self.config.query_lookback_tokens, row_plan=self._row_plan)
        rows = self._transformer.forward(batch, self.pool, on_layer)
        return self._transformer.logits(select_rows(rows, batch))[: batch.sampled_count]

    def _reveal(self, items: Sequence[BlockState], logits: Tensor, *, keep_logits: bool) -> list[StepResult]:
        sampled = [
            SampledBlock(
                sampling=item.sampling,
                block=item.attempt.block,
                step=item.next_step,
                positions=tuple(index - item.prompt_tokens for index in item.masked),
            )
            for item in items
        ]
        kept = logits.float().cpu() if keep_logits else None
        results = []
        first = 0
        for item, new in zip(items, sample(logits, sampled, mask_token_id=self.config.mask_token_id), strict=True):
            end = first + len(item.masked)
            results.append(
                StepResult(
                    step=item.next_step,
                    is_prefill=item.is_prefill,
                    positions=new.positions,
                    tokens=new.tokens,
                    confidences=new.confidences,
                    logits=None if kept is None else kept[first:end],
                )
            )
            first = end
            indices = (position + item.prompt_tokens for position in new.positions)
            item.reveal(dict(zip(indices, new.tokens, strict=True)))
        return results


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: {name!r} is not one of cpu, cuda, cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device: {name!r} is not one of cpu, cuda, cuda:N")
    # torch keeps an index in one byte: cuda:256 would be cuda:0.
    is_another = device.index is not None and str(device) != name
    if device.type == "cuda" and (is_another or (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(f"device: {name!r} is not there; torch sees {torch.cuda.device_count()} CUDA devices")
    return device

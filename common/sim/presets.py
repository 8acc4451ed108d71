"""Named models on named machines, from the paper's setting (arXiv 2607.04206): bf16, 16-token pages, H100-80GB."""

from __future__ import annotations

from dataclasses import dataclass, replace

from common.errors import ConfigError
from common.sim.cost_model import Machine, ModelShape
from common.sim.data_plane import KvLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model and the machine of each of its workers. `tokens_per_step`: what a forward reveals on average.

    `max_canvas_tokens` is the context of 4096 and a block: an output is rounded up to whole blocks.
    """

    name: str
    shape: ModelShape
    machine: Machine
    pool_pages: int
    max_canvas_tokens: int
    tokens_per_step: float
    kv_setup_s: float
    kv_bytes_per_s: float

    @property
    def kv_link(self) -> KvLink:
        """What moving this model's K/V costs."""
        return KvLink(
            setup_s=self.kv_setup_s,
            bytes_per_s=self.kv_bytes_per_s,
            kv_bytes_per_token=self.shape.kv_bytes_per_token,
            parts=self.shape.layers,
        )


_H100 = Machine(
    sustained_flops=400e12,
    attention_flops=300e12,
    memory_bytes_per_s=2.4e12,
    launch_s=0.002,
    item_s=0.0005,
)
"""By data sheet 989 TFLOP/s and 3.35 TB/s. Launch, item and attention costs are those of an eager engine, the same for
every row of docs/simulator.md; the presets' rates and tokens per step lie between those that fit the paper's rows.
"""

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="h100-llada-8b",
            shape=ModelShape.of(
                layers=32, width=4096, heads=32, kv_heads=32, head_dim=128, mlp=12288, vocab=126464, lookback=0
            ),
            machine=replace(_H100, sustained_flops=340e12),
            pool_pages=5632,
            max_canvas_tokens=4128,
            tokens_per_step=2.9,
            kv_setup_s=0.030,
            kv_bytes_per_s=50e9,
        ),
        Preset(
            name="h100-dream-7b",
            shape=ModelShape.of(
                layers=28, width=3584, heads=28, kv_heads=4, head_dim=128, mlp=18944, vocab=152064, lookback=1
            ),
            machine=_H100,
            pool_pages=49152,
            max_canvas_tokens=4128,
            tokens_per_step=2.8,
            kv_setup_s=0.030,
            kv_bytes_per_s=50e9,
        ),
    )
}


def find_preset(name: str, *, option: str) -> Preset:
    """The preset of that name. Raises ConfigError naming `option` and the names there are."""
    preset = PRESETS.get(name)
    if preset is None:
        raise ConfigError(f"{option}: {name!r} is not known; allowed: {', '.join(PRESETS)}")
    return preset

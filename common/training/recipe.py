"""What is trained and how: sizes of the two models, and the numbers of the schedule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkShape:
    """Sizes of one network. `shifted`: row j predicts position j + 1 (Dream's layout). q, k and v have biases."""

    vocab_rows: int
    hidden_size: int
    mlp_size: int
    n_layers: int
    n_heads: int
    shifted: bool
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.n_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the weights. Equal recipes on equal machines give equal weights, bit for bit.

    The first `first_steps` of the steps see the corpus' first mix. Learning rates rise over `warmup_steps`, stay, and
    fall to 0 over the last `decay_share` of them. The other steps see the last mix; where they follow first ones, the
    rates rise again, to `last_rate` of their full height, and fall from there on.
    """

    shape: NetworkShape
    steps: int
    seed: int
    first_steps: int = 0
    batch_tokens: int = 3072
    chunk_questions: int = 16_384
    """Questions that are drawn together and sorted into batches of equal length."""
    matrix_rate: float = 0.005
    embedding_rate: float = 0.02
    other_rate: float = 0.003
    weight_decay: float = 0.05
    warmup_steps: int = 200
    decay_share: float = 0.5
    last_rate: float = 0.4
    gradient_norm: float = 1.0
    half_precision: bool = True
    """Matrix products in bfloat16, weights and sums in float32."""

    def rate_factor(self, step: int) -> float:
        """Share of the full learning rates that step `step` (from 0) takes."""
        end = self.first_steps or self.steps
        if step < end:
            decay_steps = max(1, round(end * self.decay_share))
            return max(0.0, min(1.0, (step + 1) / self.warmup_steps, (end - step) / decay_steps))
        risen = (step - end + 1) / self.warmup_steps
        return self.last_rate * min(1.0, risen, (self.steps - step) / (self.steps - end))


def shape_of(model: str, *, vocab_rows: int) -> NetworkShape:
    """The shape of `llada` (sangam-tiny) or `dream` (sangam-tiny-dream)."""
    if model == "llada":
        return NetworkShape(vocab_rows=vocab_rows, hidden_size=128, mlp_size=352, n_layers=5, n_heads=4, shifted=False)
    return NetworkShape(vocab_rows=vocab_rows, hidden_size=96, mlp_size=256, n_layers=5, n_heads=4, shifted=True)


def first_steps_of(model: str, steps: int) -> int:
    """How many of a model's `steps` see the first mix when nobody says otherwise: its twin does without."""
    return round(steps * 22 / 25) if model == "llada" else 0

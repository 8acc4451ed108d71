"""Muon for the layers' matrices, AdamW for the rest: about half the steps that AdamW alone needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from common.training.recipe import Recipe

_MOMENTUM = 0.95
_BETAS = (0.9, 0.98)


class Optimizers:
    """Both optimizers as one; their rates follow the recipe's schedule."""

    def __init__(self, network: nn.Module, recipe: Recipe) -> None:
        self._recipe = recipe
        self._parameters = list(network.parameters())
        named = list(network.named_parameters())
        matrices = [parameter for name, parameter in named if name.startswith("layers.") and parameter.dim() == 2]
        embedding = [parameter for name, parameter in named if name.startswith("embedding.")]
        chosen = set(map(id, [*matrices, *embedding]))
        others = [parameter for _, parameter in named if id(parameter) not in chosen]
        self._all: dict[str, torch.optim.Optimizer] = {
            "matrices": torch.optim.Muon(
                matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay, momentum=_MOMENTUM
            ),
            "embedding": torch.optim.AdamW(embedding, lr=recipe.embedding_rate, betas=_BETAS, weight_decay=0.0),
            "others": torch.optim.AdamW(others, lr=recipe.other_rate, betas=_BETAS, weight_decay=0.0),
        }
        self._full_rates = {
            "matrices": recipe.matrix_rate,
            "embedding": recipe.embedding_rate,
            "others": recipe.other_rate,
        }

    def step(self, step: int) -> None:
        """Clip the gradients, apply them at step `step`'s rates, and drop them."""
        nn.utils.clip_grad_norm_(self._parameters, self._recipe.gradient_norm)
        factor = self._recipe.rate_factor(step)
        for name, optimizer in self._all.items():
            for group in optimizer.param_groups:
                group["lr"] = self._full_rates[name] * factor
            optimizer.step()
            optimizer.zero_grad()

    def tensors(self) -> dict[str, Tensor]:
        """Their state by name."""
        return {
            f"{name}.{index}.{key}": value
            for name, optimizer in self._all.items()
            for index, slots in optimizer.state_dict()["state"].items()
            for key, value in slots.items()
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `tensors` gave."""
        for name, optimizer in self._all.items():
            document = optimizer.state_dict()
            state: dict[int, dict[str, Tensor]] = {}
            for path, value in tensors.items():
                owner, index, key = path.split(".")
                if owner == name:
                    state.setdefault(int(index), {})[key] = value
            document["state"] = state
            optimizer.load_state_dict(document)

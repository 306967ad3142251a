"""Muon (Jordan et al. 2024): momentum whose matrix is made orthogonal before it is applied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, from the publication
ITERATIONS = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """Approximate U V^T of the singular value decompositions U S V^T by Newton-Schulz iterations; [n, rows,
    columns]."""
    a, b, c = COEFFICIENTS
    wide = matrices.shape[1] <= matrices.shape[2]
    x: Tensor = matrices if wide else matrices.mT
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, with decoupled weight decay; for matrices only.

    The step is scaled by sqrt(max(1, rows / columns)), as its author does. Matrices of one shape are stepped together.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                by_shape[weight.shape].append(weight)
            for (rows, columns), weights in by_shape.items():
                gradient = torch.stack([weight.grad for weight in weights if weight.grad is not None])
                state = self.state[weights[0]]  # one momentum for all matrices of this shape
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(gradient)
                momentum = state["momentum"].lerp_(gradient, 1 - group["momentum"])
                updates = orthogonal(gradient.lerp(momentum, group["momentum"]))
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                torch._foreach_add_(weights, list(updates.unbind()), alpha=-rate)

"""Targets of a conversion, and the shapes that they can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bitnet_core.errors import ModelError
from bitnet_core.formats.names import ternaries
from bitnet_core.model.config import ModelConfig

Target = Literal["i2_s", "tq2_0", "tq1_0", "q2_0", "pq2_0", "stq1_0", "safetensors", "mlx"]


@dataclass(frozen=True, slots=True)
class Encoding:
    """A ternary tensor type of GGUF. multiple: the columns must be a multiple of it. file_type: general.file_type.
    half_scales: scales are f16."""

    name: str
    multiple: int
    file_type: int
    half_scales: bool


ENCODINGS: dict[Target, Encoding] = {
    "i2_s": Encoding("I2_S", 128, 40, half_scales=False),
    "tq2_0": Encoding("TQ2_0", 256, 37, half_scales=True),
    "tq1_0": Encoding("TQ1_0", 256, 36, half_scales=True),
    "q2_0": Encoding("Q2_0", 64, 28, half_scales=True),
    "pq2_0": Encoding("PQ2_0", 128, 141, half_scales=True),
    "stq1_0": Encoding("STQ1_0", 256, 42, half_scales=True),
}


_OTHERS: tuple[Target, ...] = ("i2_s", "tq2_0", "tq1_0", "q2_0", "safetensors")
"""Targets suggested if the chosen one cannot hold the model."""


def check_shapes(config: ModelConfig, target: Target) -> None:
    """Raise ModelError, naming a matrix and suitable targets, if a matrix does not fit the target."""
    if target == "mlx" and not config.ternary_tables:
        raise ModelError(
            "only models with ternary embeddings and heads (Ternary Bonsai) can be written as an MLX folder"
        )
    if target == "i2_s" and config.ternary_tables:
        raise ModelError("i2_s has one scale per matrix and no ternary embedding; convert to q2_0 or pq2_0 instead")
    unfit = _unfit(config, target)
    if unfit is None:
        return
    others = [
        other for other in _OTHERS if _unfit(config, other) is None and not (other == "i2_s" and config.ternary_tables)
    ]
    name, columns = unfit
    raise ModelError(
        f"{target} needs columns in multiples of {ENCODINGS[target].multiple}, and {name} has {columns}; "
        f"convert to {' or '.join(others)} instead"
    )


def _unfit(config: ModelConfig, target: Target) -> tuple[str, int] | None:
    multiple = ENCODINGS[target].multiple if target in ENCODINGS else 128 if target == "mlx" else 1
    return next(((name, columns) for name, (_, columns) in ternaries(config).items() if columns % multiple), None)

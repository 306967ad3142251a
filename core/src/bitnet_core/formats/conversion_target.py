"""What a model can be converted to, and whether its shapes fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bitnet_core.errors import ModelError
from bitnet_core.formats.names import matrices
from bitnet_core.model.config import ModelConfig

Target = Literal["i2_s", "tq2_0", "tq1_0", "safetensors"]
TARGETS: tuple[Target, ...] = get_args(Target)


@dataclass(frozen=True, slots=True)
class Encoding:
    """A ternary tensor type of GGUF: columns it needs a multiple of, general.file_type, and whether scales are f16."""

    name: str
    multiple: int
    file_type: int
    half_scales: bool


ENCODINGS: dict[Target, Encoding] = {
    "i2_s": Encoding("I2_S", 128, 40, half_scales=False),
    "tq2_0": Encoding("TQ2_0", 256, 37, half_scales=True),
    "tq1_0": Encoding("TQ1_0", 256, 36, half_scales=True),
}


def check_shapes(config: ModelConfig, target: Target) -> None:
    """Raises ModelError, naming a matrix and the targets that would do, if a matrix does not fit the target."""
    unfit = _unfit(config, target)
    if unfit is None:
        return
    others = [other for other in TARGETS if _unfit(config, other) is None]
    name, columns = unfit
    raise ModelError(
        f"{target} needs columns in multiples of {ENCODINGS[target].multiple}, and {name} has {columns}; "
        f"convert to {' or '.join(others)} instead"
    )


def _unfit(config: ModelConfig, target: Target) -> tuple[str, int] | None:
    multiple = ENCODINGS[target].multiple if target in ENCODINGS else 1
    return next(((name, columns) for name, (_, columns) in matrices(config).items() if columns % multiple), None)

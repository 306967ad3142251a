"""The rotary table that a device gets, from the configuration and the file's frequency divisors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import DeviceInfo

from bitnet_core.errors import ModelError
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.rope import factors_name, rope_table
from bitnet_core.model.source import ModelSource
from bitnet_core.plan.weight_sizes import rotary_bytes


def rotary_table(source: ModelSource, config: ModelConfig, info: DeviceInfo, positions: int) -> npt.NDArray[np.float32]:
    """Compute f32[positions, head_dim / 2, 2]. Raises UsageError if the device cannot bind it, and ModelError if the
    file's divisors are not positive numbers."""
    rotary_bytes(config, info, positions)
    return rope_table(config, positions, _factors(source, config, positions))


def _factors(source: ModelSource, config: ModelConfig, positions: int) -> npt.NDArray[np.float32] | None:
    name = factors_name(config, positions)
    if not source.has(name):
        return None
    factors = source.vector(name)
    size = config.rotary_pairs
    if factors.shape != (size,) or not ((factors > 0) & np.isfinite(factors)).all():
        raise ModelError(f"{source.path}: {name} must be {size} positive numbers")
    return factors

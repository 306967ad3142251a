"""Names of the kernels that steps of a model launch."""

from __future__ import annotations

from bitnet_hal.device import DeviceInfo
from bitnet_hal.kernels.catalogue import DELTA_KERNELS, UNFUSED_KERNELS

from bitnet_core.model.config import ModelConfig
from bitnet_core.plan.hybrid import needed_kernels

_ONE_VALUE = frozenset({"embed_rows", "embed_rows_ternary", "argmax_advance"})
"""Kernels without a sum over a row."""


def invariant_rows(config: ModelConfig, info: DeviceInfo, *, group_scales: bool) -> int:
    """Return the number of rows up to which the device computes a row of the model with the same bits if no kernels are
    fused. group_scales: True if a ternary matrix has scales of blocks of columns."""
    kernels = UNFUSED_KERNELS - DELTA_KERNELS | needed_kernels(config)
    kernels -= _ONE_VALUE if group_scales else _ONE_VALUE | {"matmul_ternary_block"}
    return info.invariant_rows(kernels)

"""Names of the kernels that steps of a model launch."""

from __future__ import annotations

from bitnet_hal.device import DeviceInfo
from bitnet_hal.kernels.catalogue import DELTA_KERNELS, EXPERT_KERNELS, ROTATED_KERNELS, UNFUSED_KERNELS
from bitnet_hal.tuning.query import FEW_ROWS

from bitnet_core.model.config import ModelConfig

_ONE_VALUE = frozenset({"embed_rows", "embed_rows_ternary", "argmax_advance"})
"""Kernels that compute no sum over a row."""
_ROW_BY_ROW = ROTATED_KERNELS | {"matmul_ternary_glu", "rope_attention_mixed"}
"""Fused kernels for any number of rows up to FEW_ROWS: steps of one request and of several use the same kernel."""
_OF_ROTATED = frozenset({"hadamard_rotate", "glu"})


def needed_kernels(config: ModelConfig) -> frozenset[str]:
    """Return the optional kernels that a device must have to run the model."""
    needed = frozenset[str]()
    if config.delta:
        own = frozenset({"glu"}) if config.prediction_head else frozenset[str]()
        needed |= DELTA_KERNELS if config.hadamard else DELTA_KERNELS - _OF_ROTATED | own
    if config.experts:
        needed |= EXPERT_KERNELS
    return needed | {"window_attention"} if config.windows else needed


def invariant_rows(config: ModelConfig, info: DeviceInfo, *, group_scales: bool) -> int:
    """Return the largest number of rows of a step for which the device computes each row of the model with the same
    bits, without fused kernels. group_scales: True if a ternary matrix has scales of blocks of columns."""
    kernels = UNFUSED_KERNELS - DELTA_KERNELS | needed_kernels(config)
    kernels -= _ONE_VALUE if group_scales else _ONE_VALUE | {"matmul_ternary_block"}
    return info.invariant_rows(kernels)


def invariant_fused(info: DeviceInfo) -> frozenset[str]:
    """Return the fused kernels that steps of up to FEW_ROWS rows may use when a row must have the same bits in all of
    them."""
    return frozenset(name for name in info.kernels & _ROW_BY_ROW if info.invariant_rows([name]) >= FEW_ROWS)

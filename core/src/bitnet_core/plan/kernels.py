"""Names of the kernels that steps of a model launch."""

from __future__ import annotations

from bitnet_hal.device import DeviceInfo
from bitnet_hal.kernels.catalogue import DELTA_KERNELS, EXPERT_KERNELS, ROTATED_KERNELS, UNFUSED_KERNELS
from bitnet_hal.tuning.query import FEW_ROWS

from bitnet_core.model.config import ModelConfig

_ONE_VALUE = frozenset({"embed_rows", "embed_rows_ternary", "argmax_advance"})
"""Kernels that compute no sum over a row."""
_ROW_BY_ROW = ROTATED_KERNELS | {"matmul_ternary_glu", "rope_attention_mixed"}
"""Fused kernels for any number of rows: steps of one request and of several use the same kernel."""
LM_HEAD_INT8 = frozenset({"pack_head", "approx_logits", "refine_logits"})
"""The kernels of the int8 copy of the head. Steps of any number of rows use them if all logits are not needed."""
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


def invariant_optional(info: DeviceInfo, rows: int) -> frozenset[str]:
    """Return the optional kernels that steps of up to `rows` rows may use when a row must have the same bits in all of
    them."""
    kernels = frozenset(name for name in info.kernels & _ROW_BY_ROW if info.invariant_rows([name]) >= rows)
    return kernels | (info.kernels & LM_HEAD_INT8 if "refined-as-dense" in info.features else frozenset())


def mixed_attention_rows(info: DeviceInfo, *, fused: bool) -> int:
    """Return the largest number of rows for which a step may use rope_attention_mixed. fused: as in LinearLayers."""
    return FEW_ROWS if fused else info.invariant_rows(["rope_attention_mixed"])

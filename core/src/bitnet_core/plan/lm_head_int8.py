"""Pack the int8 copy of an f16 head that greedy decoding and top-k lists read (kernels/lm_head_int8.py)."""

from __future__ import annotations

import logging

from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.errors import OutOfMemoryError, UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE, DENSE_TYPES
from bitnet_hal.launcher import Launcher
from bitnet_hal.rounding import ceil_div

from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import AutoOnOff
from bitnet_core.plan.device_weights import Dense, DeviceWeights, Int8LmHead
from bitnet_core.plan.kernels import LM_HEAD_INT8
from bitnet_core.plan.view_limits import rows_per_part, view_limit
from bitnet_core.plan.weight_sizes import table_type

log = logging.getLogger(__name__)

LEAST_TABLE = 32 << 20
"""Minimum bytes of an f16 table for a copy to pay; smaller tables stay in the processor's cache."""
SPARE_MEMORY = 8
"""Minimum free memory for "auto" to make the copy, in multiples of its size."""


def int8_bytes(outs: int, columns: int) -> int:
    """Return the bytes of the copy of a head with `outs` rows."""
    return sum(_sizes(outs, columns))


def _sizes(outs: int, columns: int) -> list[int]:
    return [_granules(size) for size in (outs * columns, 4 * outs, 4 * outs)]


def planned_int8(source: ModelSource, config: ModelConfig, info: DeviceInfo, choice: AutoOnOff, free: int) -> int:
    """Return the bytes of the copy that add_lm_head_int8 would make, 0 if it makes none. free: bytes left after the
    weights, -1 if unknown."""
    if choice == "off" or config.ternary_tables or config.layers_after:
        return 0
    dtype, row_bytes = table_type(source, "token_embd" if config.tied_head else "output")
    rows = rows_per_part(source.path, view_limit(info), row_bytes, config.vocab)
    parts = ceil_div(config.vocab, rows)
    if not _wanted(info, dtype, config.vocab, config.hidden, parts, choice, free):
        return 0
    return int8_bytes(config.vocab, config.hidden)


def add_lm_head_int8(weights: DeviceWeights, launcher: Launcher, choice: AutoOnOff) -> None:
    """Add an int8 copy of the head, if it is an f16 matrix in one part and the device has its kernels.

    choice: "auto" adds it on CPUs, whose decoding is limited by reading the head, and on devices with the feature
    "lm-head-int8", if the table is large and memory is free; "on" always. Raises the device's GpuError.
    """
    head = weights.head
    device = launcher.device
    if not isinstance(head, Dense):
        return
    outs = head.rows
    columns = head.columns
    free = device.free_memory()
    if not _wanted(device.info, DENSE_TYPES[head.dtype], outs, columns, len(head.parts), choice, free):
        return
    shape = {"outs": outs, "width": columns}
    try:
        launcher.compiled(CATALOGUE["pack_head"], shape, {})
    except UnsupportedError as exc:
        log.debug("no int8 head: %s", exc)
        return
    sizes = _sizes(outs, columns)
    try:
        memory = weights.alloc(device, sum(sizes))
    except OutOfMemoryError as exc:
        if choice == "on":
            raise
        log.info("no int8 head: %s", exc)
        return
    codes = memory.part(0, outs * columns)
    scale = memory.part(sizes[0], 4 * outs)
    error = memory.part(sizes[0] + sizes[1], 4 * outs)
    views = (head.parts[0].table, codes, scale, error)
    launcher.run([launcher.prepare(CATALOGUE["pack_head"], shape, views)])
    device.synchronize()
    weights.lm_head_int8 = Int8LmHead(codes, scale, error)
    log.info("int8 head: %d bytes", sum(sizes))


def _wanted(info: DeviceInfo, dtype: str, outs: int, columns: int, parts: int, choice: AutoOnOff, free: int) -> bool:
    """Return True if the head can have a copy, and the choice asks for one with `free` bytes of memory."""
    if choice == "off" or dtype != "f16" or parts != 1 or not info.kernels >= LM_HEAD_INT8 or columns % 4:
        return False
    gains = info.type is DeviceType.CPU or "lm-head-int8" in info.features
    return choice == "on" or (gains and _pays(outs, columns, free))


def _granules(nbytes: int) -> int:
    """Round up to a multiple of 4,096, which every device's alignment divides."""
    return ceil_div(nbytes, 4096) * 4096


def _pays(outs: int, columns: int, free: int) -> bool:
    return 2 * outs * columns >= LEAST_TABLE and (free < 0 or free >= SPARE_MEMORY * outs * (columns + 8))

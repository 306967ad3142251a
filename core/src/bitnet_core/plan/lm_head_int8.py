"""Pack the int8 copy of an f16 head that greedy decoding and top-k lists read (kernels/lm_head_int8.py)."""

from __future__ import annotations

import logging

from bitnet_hal.device import DeviceType
from bitnet_hal.errors import OutOfMemoryError, UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE, DENSE_TYPES
from bitnet_hal.launcher import Launcher
from bitnet_hal.rounding import ceil_div

from bitnet_core.options.engine import AutoOnOff
from bitnet_core.plan.device_weights import Dense, DeviceWeights, Int8LmHead

log = logging.getLogger(__name__)


KERNELS = frozenset({"pack_head", "approx_logits", "refine_logits"})
LEAST_TABLE = 32 << 20
"""Smallest f16 table in bytes that gains from a copy; smaller ones stay in the processor's cache."""
SPARE_MEMORY = 8
"""With "auto" the copy is made only if this many times its size is free."""


def add_lm_head_int8(weights: DeviceWeights, launcher: Launcher, choice: AutoOnOff) -> None:
    """Add an int8 copy of the head, if it is an f16 matrix in one part and the device has KERNELS.

    choice: "auto" adds it on CPUs, whose decoding is limited by reading the head, and on devices with the feature
    "lm-head-int8", if the table is large and memory is free; "on" always. Raises the device's GpuError.
    """
    head = weights.head
    device = launcher.device
    if choice == "off" or not isinstance(head, Dense) or head.dtype != DENSE_TYPES.index("f16") or len(head.parts) != 1:
        return
    if not device.info.kernels >= KERNELS or head.columns % 4:
        return
    nbytes = head.rows * (head.columns + 8)
    gains = device.info.type is DeviceType.CPU or "lm-head-int8" in device.info.features
    if choice == "auto" and not (gains and _pays(head, nbytes, device.free_memory())):
        return
    outs = head.rows
    columns = head.columns
    shape = {"outs": outs, "width": columns}
    try:
        launcher.compiled(CATALOGUE["pack_head"], shape, {})
    except UnsupportedError as exc:
        log.debug("no int8 head: %s", exc)
        return
    sizes = [_granules(size) for size in (outs * columns, 4 * outs, 4 * outs)]
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
    log.info("int8 head: %d bytes", nbytes)


def _granules(nbytes: int) -> int:
    """Round up to a multiple of 4,096, which every device's alignment divides."""
    return ceil_div(nbytes, 4096) * 4096


def _pays(head: Dense, nbytes: int, free: int) -> bool:
    return 2 * head.rows * head.columns >= LEAST_TABLE and (free < 0 or free >= SPARE_MEMORY * nbytes)

"""Whether and how a head gets the int8 copy that greedy choice and short lists read (kernels/lm_head_int8.py)."""

from __future__ import annotations

import logging
from typing import Literal

from bitnet_hal.device import DeviceType
from bitnet_hal.errors import OutOfMemoryError, UnsupportedError
from bitnet_hal.kernels.catalogue import CATALOGUE, DENSE_TYPES
from bitnet_hal.launcher import Launcher
from bitnet_hal.rounding import ceil_div

from bitnet_core.plan.weights import Dense, DeviceWeights, Int8LmHead

log = logging.getLogger(__name__)

AutoOnOff = Literal["auto", "on", "off"]

KERNELS = frozenset({"pack_head", "approx_logits", "refine_logits"})
LEAST_TABLE = 32 << 20
"""Bytes of an f16 table below which a copy gains nothing: it lies in the cache."""
SPARE_MEMORY = 8
"""The copy is made only where this many times its size is free, unless it is asked for."""


def add_lm_head_int8(weights: DeviceWeights, launcher: Launcher, choice: AutoOnOff) -> None:
    """Make the copy where it serves: an f16 head in one part, on a device with the kernels.

    choice: "auto" makes it on CPUs, where the head's bytes are what a token waits for, and on devices with the feature
    "lm-head-int8"; "on" for heads of any size, on any device, however little memory is free.
    Raises what the device raises.
    """
    head, device = weights.head, launcher.device
    if choice == "off" or not isinstance(head, Dense) or head.dtype != DENSE_TYPES.index("f16") or len(head.parts) != 1:
        return
    if not device.info.kernels >= KERNELS or head.columns % 4:
        return
    nbytes = head.rows * (head.columns + 8)
    gains = device.info.type is DeviceType.CPU or "lm-head-int8" in device.info.features
    if choice == "auto" and not (gains and _worth_it(head, nbytes, device.free_memory())):
        return
    outs, columns = head.rows, head.columns
    shape = {"outs": outs, "width": columns}
    try:
        launcher.compiled(CATALOGUE["pack_head"], shape, {})
    except UnsupportedError as exc:
        log.debug("no small head: %s", exc)
        return
    sizes = [_granules(size) for size in (outs * columns, 4 * outs, 4 * outs)]
    try:
        room = weights.alloc(device, sum(sizes))
    except OutOfMemoryError as exc:
        if choice == "on":
            raise
        log.info("no small head: %s", exc)
        return
    codes = room.part(0, outs * columns)
    scale, error = room.part(sizes[0], 4 * outs), room.part(sizes[0] + sizes[1], 4 * outs)
    views = head.parts[0].table, codes, scale, error
    launcher.run([launcher.prepare(CATALOGUE["pack_head"], shape, views)])
    device.synchronize()
    weights.lm_head_int8 = Int8LmHead(codes, scale, error)
    log.info("small head: %d bytes", nbytes)


def _granules(nbytes: int) -> int:
    """Rounded up to what every device's alignment divides."""
    return ceil_div(nbytes, 4096) * 4096


def _worth_it(head: Dense, nbytes: int, free: int) -> bool:
    return 2 * head.rows * head.columns >= LEAST_TABLE and (free < 0 or free >= SPARE_MEMORY * nbytes)

"""When to find the largest logits through an int8 copy of the f16 head (native/kernels/small_head.hpp).

In a recording, a matmul_dense of one row whose logits the next launch (argmax_advance, top_k) reads is replaced: drafts
from the copy say which rows may be among the largest, and only those are computed from f16. The chosen tokens are the
f16 head's. The other logits of the buffer are drafts then, so a download after such a replay is no f16 product.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
from bitnet_core.errors import OutOfMemoryError, UsageError
from bitnet_core.hal.device import View
from bitnet_core.kernels.catalogue import DENSE_TYPES
from bitnet_core.kernels.spec import KernelSpec

from bitnet_cpu import _native
from bitnet_cpu.errors import native

log = logging.getLogger(__name__)

VARIABLE = "BITNET_CPU_SMALL_HEAD"
LEAST_TABLE = 32 << 20
"""Bytes of an f16 table below which a copy gains nothing: it lies in the cache."""
MOST_WIDTH = 16384
"""Columns up to which the error bound covers f32 rounding (as in C++)."""
SPARE_MEMORY = 8
"""The copy is made only where this many times its size is free."""


@dataclass(frozen=True, slots=True)
class Step:
    """A recorded launch."""

    launch: _native.Launch
    spec: KernelSpec
    constants: dict[str, int]
    views: tuple[View, ...]
    params: dict[str, int | float]


class SmallHeads:
    """The copies that a device holds, one per table."""

    def __init__(self, pool: _native.Pool) -> None:
        self._pool = pool
        self._heads: dict[tuple[object, int, int, int], _native.SmallHead] = {}
        self._choice = choice()

    def record(self, steps: Sequence[Step], launches: _native.Launches, read_only: set[object]) -> int:
        """Append the steps to `launches`, with small heads where they serve; the bytes that one replay then reads less.

        read_only: buffers that never change.
        """
        saved = 0
        for step, following in zip(steps, (*steps[1:], None), strict=True):
            k = wanted(step, following) if following and step.views[1].buffer in read_only else 0
            head = self._head(step) if k else None
            if head:
                launches.append_small_head(step.launch, head, k)
                outs, width = int(step.params["outs"]), int(step.params["width"])
                saved += 2 * outs * width - _native.SmallHead.bytes_of(outs, width)
            else:
                launches.append(step.launch)
        return saved

    def forget(self, buffer: object) -> None:
        """Drop the copies of tables in a buffer."""
        self._heads = {key: head for key, head in self._heads.items() if key[0] is not buffer}

    def _head(self, step: Step) -> _native.SmallHead | None:
        outs, width = int(step.params["outs"]), int(step.params["width"])
        key = (step.views[1].buffer, step.views[1].offset, outs, width)
        if key not in self._heads:
            nbytes = _native.SmallHead.bytes_of(outs, width)
            free = psutil.virtual_memory().available
            if self._choice == "0" or (self._choice == "auto" and free < SPARE_MEMORY * nbytes):
                return None
            try:
                with native("small head", nbytes):
                    self._heads[key] = _native.small_head(step.launch, self._pool)
            except OutOfMemoryError as exc:
                log.info("no small head: %s", exc)
                return None
            log.info("small head: %d bytes", nbytes)
        return self._heads[key]


def choice() -> str:
    """BITNET_CPU_SMALL_HEAD: "1", "0" or "auto". UsageError for anything else."""
    text = os.environ.get(VARIABLE) or "auto"
    if text not in ("0", "1", "auto"):
        raise UsageError(f"{VARIABLE} is '{text}'. Use 0, 1 or auto")
    return text


def wanted(dense: Step, chooser: Step) -> int:
    """How many of the largest logits of `dense` the launch after it reads; 0 if it may read more than that."""
    p = dense.params
    if dense.spec.name != "matmul_dense" or dense.constants["DTYPE"] != DENSE_TYPES.index("f16") or p["rows"] != 1:
        return 0
    if p["outs"] * p["width"] * 2 < LEAST_TABLE or p["width"] > MOST_WIDTH or p["y_first"] != 0:
        return 0
    if chooser.spec.name not in ("argmax_advance", "top_k"):
        return 0
    logits, read, c = dense.views[2], chooser.views[0], chooser.params
    if (read.buffer, read.offset) != (logits.buffer, logits.offset) or c["rows"] != 1 or c["vocab"] != p["outs"]:
        return 0
    return int(c["k"]) if chooser.spec.name == "top_k" else 1

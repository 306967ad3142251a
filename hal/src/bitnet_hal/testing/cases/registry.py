"""All cases, by kernel."""

from __future__ import annotations

from functools import cache

from bitnet_hal.testing.cases import (
    attention,
    choose,
    delta,
    dense,
    embed,
    experts,
    fused,
    layer,
    lm_head_int8,
    quantize,
    repack,
    rope,
    rotated,
    ternary,
    window,
)
from bitnet_hal.testing.cases.case import Case

_MODULES = (
    *(embed, quantize, ternary, rope, attention, dense, choose, fused, layer, lm_head_int8, delta, rotated),
    *(experts, window, repack),
)

_BATCHES = (
    *(quantize, ternary, rope, attention, dense, choose, fused),
    *(lm_head_int8, delta, rotated, experts, window),
)


@cache
def all_cases() -> tuple[Case, ...]:
    """Return every case of every catalogue kernel."""
    return tuple(case for module in _MODULES for case in module.cases())


def cases_of(kernel: str) -> list[Case]:
    """Return the cases of one kernel."""
    return [case for case in all_cases() if case.kernel == kernel]


@cache
def batches_of(kernel: str) -> tuple[Case, ...]:
    """Return the cases of batch invariance of one kernel, each of BATCH_ROWS rows; none for kernels without sums over a
    row, for one-row kernels, and for fused kernels that serve some numbers of rows only."""
    return tuple(case for module in _BATCHES for case in module.batches() if case.kernel == kernel)

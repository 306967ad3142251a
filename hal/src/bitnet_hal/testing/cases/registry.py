"""All cases, by kernel."""

from __future__ import annotations

from functools import cache

from bitnet_hal.testing.cases import (
    attention,
    choose,
    delta,
    dense,
    embed,
    fused,
    layer,
    lm_head_int8,
    quantize,
    rope,
    rotated,
    ternary,
)
from bitnet_hal.testing.cases.case import Case

_MODULES = (embed, quantize, ternary, rope, attention, dense, choose, fused, layer, lm_head_int8, delta, rotated)


@cache
def all_cases() -> tuple[Case, ...]:
    """Return every case of every catalogue kernel."""
    return tuple(case for module in _MODULES for case in module.cases())


def cases_of(kernel: str) -> list[Case]:
    """Return the cases of one kernel."""
    return [case for case in all_cases() if case.kernel == kernel]

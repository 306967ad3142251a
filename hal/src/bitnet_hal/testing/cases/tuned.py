"""The few cases of a product with which every offered tuning is tested."""

from __future__ import annotations

from functools import cache

from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.params import PRODUCT
from bitnet_hal.testing.cases.case import Case
from bitnet_hal.testing.cases.registry import cases_of

_MOST_WEIGHTS = {(1, 1): 520_000, (5, 8): 200_000, (9, 64): 200_000, (65, 300): 200_000}
"""(minimum, maximum) rows of a case -> maximum elements of its matrix, for one row, few rows, a batch and a prompt. An
emulated device computes only a few million products per second."""


def products() -> list[str]:
    """Return the kernels whose tunings `bitnet tune` measures."""
    return [name for name, spec in CATALOGUE.items() if PRODUCT.issubset(param.name for param in spec.params)]


@cache
def tuned_cases(kernel: str) -> tuple[Case, ...]:
    """Return the case of a kernel with the largest matrix for one row, for few rows, for a batch and for a prompt."""
    sizes = {case.id: case.launch().params for case in cases_of(kernel)}
    found: list[Case] = []
    for (fewest, most), most_weights in _MOST_WEIGHTS.items():
        weights = {
            case: int(sizes[case.id]["outs"]) * int(sizes[case.id]["width"])
            for case in cases_of(kernel)
            if fewest <= sizes[case.id]["rows"] <= most
        }
        fitting = [case for case, size in weights.items() if size <= most_weights]
        if fitting:
            found.append(max(fitting, key=weights.__getitem__))
    return tuple(found)

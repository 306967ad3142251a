"""Which of the programs in the wheel a launch uses. A program has no shape built in, so that there are few of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitnet_hal.plugin import KernelSpec, Tuning, TuningTable, table

TUNINGS = TuningTable(table(__file__, "tunings.toml"))
"""All that there are; they are the same for every GPU, as none has run them yet."""


def architecture(device_id: int) -> Mapping[str, Any]:
    """What architectures.toml says of a PCI device number; nothing where it is not known."""
    return dict(table(__file__, "architectures.toml").get(f"{device_id >> 8:02X}", {}))


def program_name(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """Of the program's file, such as matmul_ternary_tiled.ADD0.GROUP256.SPLITS1.TILE_N64.TILE_T64."""
    named = {name: constants[name] for name in spec.constants} | dict(tuning.tile) | dict(tuning.private)
    return ".".join((tuning.source(spec.name), *(f"{name}{value}" for name, value in sorted(named.items()))))

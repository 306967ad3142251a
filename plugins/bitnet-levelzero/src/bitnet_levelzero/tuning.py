"""Which of the programs in the wheel a launch uses. A program has no shape built in, so that there are few of them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from bitnet_core.hal.device import Tuning
from bitnet_core.hal.tuning_table import TuningTable
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_core.kernels.spec import KernelSpec

_FOLDER = Path(__file__).parent
TUNINGS = TuningTable(_FOLDER / "tunings.toml", "level-zero")
"""All that there are; they are the same for every GPU, as none has run them yet."""


def architecture(device_id: int) -> Mapping[str, Any]:
    """What architectures.toml says of a PCI device number; nothing where it is not known."""
    families = tomllib.loads((_FOLDER / "architectures.toml").read_text(encoding="utf-8"))
    known: Mapping[str, Any] = families.get(f"{device_id >> 8:02X}", {})
    return known


def program_name(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """Of the program's file, such as matmul_ternary_tiled.ADD0.GROUP256.SPLITS1.TILE_N64.TILE_T64."""
    named = {name: constants[name] for name in spec.constants} | dict(tuning.tile) | dict(tuning.private)
    entry = f"{spec.name}_{tuning.variant}" if tuning.variant else spec.name
    return ".".join((entry, *(f"{name}{value}" for name, value in sorted(named.items()))))


def programs() -> Iterator[tuple[str, KernelSpec, dict[str, int], Tuning]]:
    """(name, kernel, semantic constants, tuning) of every program in the wheel."""
    for kernel, rows in TUNINGS.rows.items():
        spec = CATALOGUE[kernel]
        for values in product(*spec.constants.values()):
            constants = dict(zip(spec.constants, values, strict=True))
            for row in rows:
                yield program_name(spec, constants, row.tuning), spec, constants, row.tuning

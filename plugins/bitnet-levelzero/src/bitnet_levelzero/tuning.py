"""The choice of a launch's precompiled program. Programs have no shape built in, so that there are few of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitnet_hal.plugin import KernelSpec, Tuning, TuningQuery, TuningTable, table

TUNINGS = TuningTable(table(__file__, "tunings.toml"))
"""The tunings of launches; they are the same for every GPU, because no GPU has run them yet."""
ALTERNATIVES = TuningTable(table(__file__, "alternatives.toml"))
"""Further tunings of products."""


def candidate_tunings(query: TuningQuery) -> list[Tuning]:
    """Return the selected tuning, then others that `bitnet tune` measures.

    These are other numbers of lanes per matrix row, and the widths of subgroups that the GPU has.
    """
    selected = TUNINGS.tune(query)
    if selected.variant == "narrow":
        return [selected]
    widths = {0, *map(int, str(query.info.extra["subgroups"]).split())}
    offered = {selected.key: selected}
    for tuning in ALTERNATIVES.all(query):
        several = tuning.tile["TILE_T"] > 1
        if tuning.private.get("SUBGROUP", 0) in widths and several == (query["rows"] > 1):
            offered.setdefault(tuning.key, tuning)
    return list(offered.values())


def architecture(device_id: int) -> Mapping[str, Any]:
    """Return the row of architectures.toml for a PCI device number, empty if it is unknown."""
    return dict(table(__file__, "architectures.toml").get(f"{device_id >> 8:02X}", {}))


def program_name(spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> str:
    """Return the name of the program's file, such as matmul_ternary_tiled.ADD0.GROUP256.SPLITS1.TILE_N64.TILE_T64."""
    semantic = {name: constants[name] for name in spec.constants}
    values = {**semantic, **tuning.tile, **tuning.private}
    parts = [f"{name}{value}" for name, value in sorted(values.items())]
    return ".".join([tuning.source(spec.name), *parts])

"""How each class of device wants each launch: which source, how many work-items, which tiles.

Rows of a table for CPUs (cpu.toml) and for GPUs that nobody measured (gpu.toml); formulas for NVIDIA's.

Private constants: GROUP (work-items of a group), LANES (work-items that share a row), ROWS and COLUMNS (register tile),
DEPTH (loads on their way together), SHARE (elements of a row for each work-item), WIDTH (of a row), ALIGNED; SPREAD,
OWNED, CHUNK, KEYS, HEADS and HEAD_DIM (attention); GROUPS (most sets of groups that share work).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bitnet_core.hal.device import Tuning
from bitnet_core.hal.tuning_table import TuningTable
from bitnet_core.kernels.spec import KernelSpec

_SHARED_ROWS = ("matmul_ternary", "matmul_ternary_block", "matmul_dense")
"""Products whose rows are shared among lanes."""

Constants = Mapping[str, int]
Params = Mapping[str, int | float]

CPU, GPU = (TuningTable(Path(__file__).with_name(name), "opencl") for name in ("cpu.toml", "gpu.toml"))


@dataclass(frozen=True, slots=True)
class Profile:
    """What tuning knows about a device.

    cpu: work-items of a group run one after the other. lanes: work-items that surely sit in one subgroup, side by side.
    units: compute units. nvidia: it takes NVIDIA's dialect. ptx: with the tensor cores of compute capability 8.0.
    members: groups that run at the same time, so that they may wait for each other; 0 where that is not known.
    """

    cpu: bool = False
    max_group: int = 256
    lanes: int = 32
    units: int = 1
    nvidia: bool = False
    ptx: bool = False
    members: int = 0

    def group(self, wanted: int) -> int:
        """`wanted` work-items, or as many as a group may have."""
        return min(wanted, self.max_group)


def tune(profile: Profile, spec: KernelSpec, constants: Constants, params: Params) -> Tuning:
    """The tuning of one launch; UnsupportedError where an optional kernel does not serve it."""
    if profile.ptx or profile.members:
        from bitnet_opencl.clc.nvidia_tuning import FORMULAS, Wanted

        return FORMULAS[spec.name](Wanted(profile, constants, params))
    return (CPU if profile.cpu else GPU).tune(spec.name, params, profile.max_group)


def offered(profile: Profile, spec: KernelSpec, constants: Constants, params: Params) -> list[Tuning]:
    """The tuning of one launch first, then others for products of few rows on a GPU that nobody measured: `bitnet tune`
    chooses among them. The more lanes share a row, the fewer rows a group has."""
    usual = tune(profile, spec, constants, params)
    lanes = usual.private.get("LANES", 0)
    if profile.cpu or profile.ptx or usual.variant or spec.name not in _SHARED_ROWS:
        return [usual]
    others = [count for count in (4, 8, 16, 32) if count != lanes and count <= profile.lanes]
    return [usual, *(_with_lanes(usual, lanes, count) for count in others)]


def _with_lanes(usual: Tuning, lanes: int, count: int) -> Tuning:
    tile = {**usual.tile, "TILE_N": usual.tile["TILE_N"] * lanes // count}
    return Tuning(tile, private={**usual.private, "LANES": count})

"""The choice of a launch's source, work-group size and tile, by class of device.

CPUs use the rows of cpu.toml, NVIDIA GPUs the functions of nvidia_tuning.py and nvidia_layer.py and the rows of
nvidia.toml, other GPUs, which nobody has measured, the rows of gpu.toml. gpu.toml explains the private constants.
"""

from __future__ import annotations

from bitnet_hal.plugin import DeviceType, Tuning, TuningQuery, TuningTable, table

from bitnet_opencl.clc.nvidia_layer import decoder_layer
from bitnet_opencl.clc.nvidia_tuning import FORMULAS

CPU = TuningTable(table(__file__, "cpu.toml"))
GPU = TuningTable(table(__file__, "gpu.toml"))
NVIDIA = TuningTable(table(__file__, "nvidia.toml"))
_LANE_KERNELS = ("matmul_ternary", "matmul_ternary_block", "matmul_dense")
"""Products in which LANES work-items share a matrix row."""


def select_tuning(query: TuningQuery) -> Tuning:
    """Return the tuning of a launch. Raises UnsupportedError if the device does not support it."""
    name = query.spec.name
    nvidia = bool(query.of_device("ptx") or query.of_device("members"))
    if nvidia and name == "decoder_layer":
        return decoder_layer(query)
    if nvidia and name in FORMULAS:
        return FORMULAS[name](query)
    return _table(query, nvidia=nvidia).tune(query, query.of_device("max_group"))


def _table(query: TuningQuery, *, nvidia: bool) -> TuningTable:
    if nvidia:
        return NVIDIA
    return CPU if query.info.type is DeviceType.SOFTWARE else GPU


def candidate_tunings(query: TuningQuery) -> list[Tuning]:
    """Return the selected tuning, then others that `bitnet tune` measures.

    These are other numbers of lanes per matrix row, for products of few rows on a GPU that nobody has measured.
    """
    selected = select_tuning(query)
    measured = query.info.type is DeviceType.SOFTWARE or query.of_device("ptx")
    if measured or selected.variant or query.spec.name not in _LANE_KERNELS:
        return [selected]
    return selected.with_lanes(query.of_device("lanes"))

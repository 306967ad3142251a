"""How each class of device wants each launch: which source, how many work-items, which tiles.

Rows of a table for CPUs (cpu.toml) and for GPUs that nobody measured (gpu.toml); for NVIDIA's formulas, and rows
(nvidia.toml) where these say all. gpu.toml says what the
private constants are.
"""

from __future__ import annotations

from bitnet_hal.plugin import DeviceType, Tuning, TuningQuery, TuningTable, table

from bitnet_opencl.clc.nvidia_tuning import FORMULAS

_SHARED_ROWS = ("matmul_ternary", "matmul_ternary_block", "matmul_dense")
"""Products whose rows are shared among lanes."""
CPU, GPU, NVIDIA = (TuningTable(table(__file__, f"{name}.toml")) for name in ("cpu", "gpu", "nvidia"))


def select_tuning(query: TuningQuery) -> Tuning:
    """The tuning of one launch; UnsupportedError where an optional kernel does not serve it."""
    name, measured = query.spec.name, query.of_device("ptx") or query.of_device("members")
    if measured and name in FORMULAS:
        return FORMULAS[name](query)
    table = NVIDIA if measured else CPU if query.info.type is DeviceType.SOFTWARE else GPU
    return table.tune(query, query.of_device("max_group"))


def candidate_tunings(query: TuningQuery) -> list[Tuning]:
    """The tuning of one launch first, then others for products of few rows on a GPU that nobody measured: `bitnet tune`
    chooses among them. The more lanes share a row, the fewer rows a group has."""
    usual, device = select_tuning(query), query.info
    measured = device.type is DeviceType.SOFTWARE or device.extra["ptx"]
    if measured or usual.variant or query.spec.name not in _SHARED_ROWS:
        return [usual]
    return usual.with_lanes(query.of_device("lanes"))

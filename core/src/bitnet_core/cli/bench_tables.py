"""The tables of `bitnet bench`: speed and memory, kernels of a step, the driver's report, speculation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bitnet_core.cli.console import cell, print_json, print_table
from bitnet_core.units import size

if TYPE_CHECKING:
    from bitnet_core.measure.benchmark import BenchResult
    from bitnet_core.measure.hardware_report import HardwareReport
    from bitnet_core.measure.profiling import StepProfile
    from bitnet_core.measure.speculation import SpeculationResult


def show(
    result: BenchResult,
    profiles: list[StepProfile],
    report: HardwareReport,
    speculation: SpeculationResult | None,
    *,
    as_json: bool,
) -> None:
    """Print a result as tables, or as one JSON document."""
    if as_json:
        print_json(result.document() | ({"speculation": speculation.document()} if speculation else {}))
        return
    _print(result, list(_speculation_rows(speculation)) if speculation else [])
    for step in profiles:
        _print_kernels(step, result.read_bandwidth)
    if profiles:
        _print_hardware(report)


def _print(result: BenchResult, more: list[tuple[str, str]]) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    many = f"{result.sequences} requests of " if result.sequences > 1 else ""
    rows: list[tuple[str, Any]] = [
        ("model", result.model),
        ("device", f"{result.device} ({result.device_name}), {result.compute_path}"),
        ("load", f"{result.load_seconds:.2f} s"),
        ("prefill", f"{result.prefill_speed:.1f} tokens/s ({many}{result.prompt_tokens} tokens)"),
        (
            "decode",
            f"{result.decode_speed:.1f} tokens/s ({many}{result.generated_tokens} tokens, {result.repeat} runs)",
        ),
        (
            "host memory",
            f"{size(result.host_memory)}, {result.host_memory / result.host_total:.1%} of {size(result.host_total)}",
        ),
        (
            "device memory",
            f"weights {size(result.weight_memory)} and {size(result.wrapped_memory)} used in place, "
            f"KV cache {size(result.kv_memory)}, "
            f"scratch {size(result.scratch_memory)}",
        ),
        ("read per token", _read(result)),
    ]
    if len(result.layers) > 1:
        rows.insert(2, ("layers", ", ".join(f"{request} {count}" for request, count in result.layers.items())))
    for name, value in rows + more:
        table.add_row(cell(name, "bold"), cell(value))
    print_table(table)


def _read(result: BenchResult) -> str:
    read = f"{result.bytes_per_token / 1e6:.1f} MB"
    if result.bandwidth_fraction is None:
        return f"{read}, by all devices together"
    return f"{read}, {_used(result.bandwidth_fraction)} the measured {result.read_bandwidth / 1e9:.1f} GB/s"


def _used(fraction: float) -> str:
    """Say how a rate compares with a bandwidth. A cache may deliver more than memory."""
    return f"{fraction:.0%} of" if fraction <= 1 else "in cache: faster than"


def share_of(rate: float, bandwidth: float) -> str:
    """Return a share of the memory's bandwidth for people; "in cache" for bytes that memory could not deliver so
    fast."""
    return "in cache" if rate > bandwidth else f"{rate / bandwidth:.0%}"


def _print_kernels(step: StepProfile, bandwidth: float) -> None:
    from rich.table import Table

    table = Table(title=f"{step.step}: {1e3 * step.seconds:.3f} ms", title_justify="left", box=None, pad_edge=False)
    for column in ("kernel", "launches", "us", "least", "mean", "most", "share", "GB/s", "of the bandwidth"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    for kernel in step.kernels():
        rate = kernel.bytes_per_second
        each = (f"{1e6 * seconds:.2f}" for seconds in (kernel.least, kernel.mean, kernel.most))
        figures = (f"{1e6 * kernel.seconds:.1f}", *each, f"{kernel.seconds / step.seconds:.0%}")
        speeds = (f"{rate / 1e9:.0f}", share_of(rate, bandwidth))
        table.add_row(*map(cell, (kernel.kernel, kernel.launches, *figures, *speeds)))
    print_table(table)


def _print_hardware(report: HardwareReport) -> None:
    """Print the driver's report, or say that there is none."""
    from bitnet_hal.features import KERNEL_RESOURCES, SENSORS
    from rich.table import Table

    unreported = "not reported by this backend or its driver"
    names = [name for name in KERNEL_RESOURCES if any(name in kernel.resources for kernel in report.kernels)]
    if names:
        kernels = Table(title="compiled kernels", title_justify="left", box=None, pad_edge=False)
        for column in ("kernel", "tile", *names):
            kernels.add_column(column.replace("_", " "), justify="left" if column == "kernel" else "right")
        for kernel in report.kernels:
            shown = [_resource(name, kernel.resources.get(name)) for name in names]
            tile = " x ".join(
                str(kernel.tuning.tile[name]) for name in ("TILE_N", "TILE_T") if name in kernel.tuning.tile
            )
            kernels.add_row(*map(cell, (kernel.tuning.source(kernel.kernel), tile, *shown)))
        print_table(kernels)
    facts = Table(box=None, show_header=False, pad_edge=False)
    for name, value in report.sensors.items():
        facts.add_row(cell(name.replace("_", " "), "bold"), cell(f"{value:.0f} {SENSORS[name]}"))
    if not report.sensors:
        facts.add_row(cell("temperature, clocks", "bold"), cell(unreported))
    if not names:
        facts.add_row(cell("registers, occupancy", "bold"), cell(unreported))
    print_table(facts)


def _resource(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0%}" if name == "occupancy" else f"{value:.0f}"


def _speculation_rows(result: SpeculationResult) -> Iterator[tuple[str, str]]:
    """Yield names and values for the table of results."""
    costs = result.row_seconds
    ratios = ", ".join(f"{rows}: {seconds / costs[1]:.2f}" for rows, seconds in costs.items())
    yield "verified rows", f"{ratios} (seconds of a step by rows, of {1e3 * costs[1]:.3f} ms for one)"
    for run in result.runs:
        name = result.kind if run.probability is None else f"P = {run.probability:g}"
        ratio = f"{run.speed / result.plain_speed:.2f} x without"
        if result.sequences > 1:
            ratio += f" ({run.together / result.plain_together:.2f} x while all requests run)"
        yield (
            f"speculation, {name}",
            f"{run.speed:.1f} tokens/s, {ratio}; {run.tokens_per_step:.2f} tokens a step, "
            + ("no draft tokens" if run.acceptance is None else f"{run.acceptance:.0%} of the draft tokens right"),
        )

"""`bitnet bench`: speed, memory, and the share of the memory's bandwidth."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from bitnet_hal.errors import BitnetError, UsageError
from bitnet_hal.output import check_output, new_file

from bitnet_core.cli import options
from bitnet_core.cli.bench_devices import bench_devices
from bitnet_core.cli.bench_speculation import speculation_rows
from bitnet_core.cli.console import cell, print_json, print_table, progress_bar
from bitnet_core.cli.opening import opened, replicas, several_devices
from bitnet_core.cli.parameters import expanded
from bitnet_core.options.engine import EngineOptions, Speculate
from bitnet_core.options.fields import option
from bitnet_core.options.loading import LoadOptions
from bitnet_core.options.split import main_device
from bitnet_core.units import size

if TYPE_CHECKING:
    from bitnet_core.api import Model
    from bitnet_core.measure.benchmark import BenchResult
    from bitnet_core.measure.hardware_report import HardwareReport
    from bitnet_core.measure.profiling import StepProfile
    from bitnet_core.measure.speculation import SpeculationResult


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The size of a benchmark."""

    prompt_tokens: int | None = option(
        None, flags=("--prompt-tokens", "-p"), at_least=1, help="Tokens of a prompt. Default: 512, or what fits."
    )
    max_tokens: int = option(128, flags=("--max-tokens", "-n"), at_least=2, help="Tokens to generate.")
    sequences: int = option(1, flags=("--sequences", "-s"), at_least=1, help="Concurrent requests.")
    repeat: int = option(3, at_least=1, help="Runs; the medians are printed.")
    acceptance: tuple[float, ...] = option(
        (),
        metavar="P",
        at_least=0,
        at_most=1,
        help="Measure speculation with draft tokens that are right with probability P; may be repeated. Without it, "
        "--speculate KIND measures the real ones.",
    )


ServerOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Measure a running server instead: --sequences concurrent clients, streaming."),
]


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)


@expanded
def bench(
    *,
    model: options.ModelOptions,
    wanted: BenchOptions,
    synthetic: options.SyntheticOption = None,
    as_json: options.JsonOption = False,
    loading: LoadOptions,
    engine: EngineOptions,
    quiet: options.QuietOption = False,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Time each kernel of a step; FILE gets a Chrome trace of it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing FILE of --profile.")] = False,
    server: ServerOption = None,
) -> None:
    """Measure prefill and decode speed, load time and memory.

    The tokens of the prompt are random, and the model's end token does not end a run. With --server: tokens a second,
    the time to the first token and between tokens, and errors, of --sequences clients that ask --repeat times each.
    With several devices (-d A,B or -d all): each alone, all at the same time, and the sums.
    """
    if server is not None:
        if model.model is not None or synthetic is not None or profile is not None:
            raise UsageError("--server measures a running server: --model, --synthetic and --profile do not apply")
        _bench_server(server, wanted, as_json=as_json)
        return
    if model.model is not None and synthetic is not None:
        raise UsageError("--model and --synthetic exclude each other")
    engine = replace(engine, max_sequences=max(engine.max_sequences, wanted.sequences))
    main_device(engine.split, model.device)  # refuses a list of devices beside a split
    if several := several_devices(model.device):
        if profile or wanted.acceptance:
            raise UsageError("--profile and --acceptance measure one device")
        opener = replicas(model, loading, engine, synthetic)
        sizes = (wanted.prompt_tokens, wanted.max_tokens, wanted.repeat, wanted.sequences)
        bench_devices(several, opener, *sizes, as_json=as_json)
        return
    if profile:
        check_output(profile, [Path(model.model)] if model.model else [], force=force)
    start = time.perf_counter()
    with opened(model, loading, engine, synthetic) as loaded:
        result, profiles, report = _bench_model(loaded, time.perf_counter() - start, wanted, profile)
        speculation = _bench_speculation(loaded, wanted, result.prompt_tokens, engine.speculate)
        source = loaded.source.path
    if profile:
        with new_file(profile, [source], force=force) as file:
            from bitnet_core.measure.profiling import chrome_trace

            file.write(json.dumps(chrome_trace(profiles, report)).encode())
    _show(result, profiles, report, speculation, as_json=as_json)


def _show(
    result: BenchResult,
    profiles: list[StepProfile],
    report: HardwareReport,
    speculation: SpeculationResult | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(result.document() | ({"speculation": speculation.document()} if speculation else {}))
        return
    _print(result, list(speculation_rows(speculation)) if speculation else [])
    for step in profiles:
        _print_kernels(step, result.read_bandwidth)
    if profiles:
        _print_hardware(report)


def _bench_model(
    model: Model, load_seconds: float, wanted: BenchOptions, profile: Path | None
) -> tuple[BenchResult, list[StepProfile], HardwareReport]:
    """Return the result and, if a file for their trace is given, the kernels of a step and the driver's report."""
    from bitnet_core.measure.benchmark import measure
    from bitnet_core.measure.hardware_report import HardwareReport, hardware_report
    from bitnet_core.measure.profiling import profile as measure_kernels

    with progress_bar() as progress:
        result = measure(
            model, load_seconds, wanted.prompt_tokens, wanted.max_tokens, wanted.repeat, wanted.sequences, progress
        )
    if not profile:
        return result, [], HardwareReport({}, ())
    kernels = measure_kernels(model.engine)
    return result, kernels, hardware_report(model.engine)  # while the device is still warm


def _bench_speculation(
    model: Model, wanted: BenchOptions, prompt_tokens: int, speculate: Speculate
) -> SpeculationResult | None:
    """Measure speculation, if it is asked for."""
    if not wanted.acceptance and speculate in ("auto", "off"):
        return None
    from bitnet_core.measure.speculation import measure_speculation

    with progress_bar() as progress:
        return measure_speculation(
            model.engine,
            wanted.acceptance,
            prompt_tokens=prompt_tokens,
            max_tokens=wanted.max_tokens,
            repeat=wanted.repeat,
            sequences=wanted.sequences,
            progress=progress,
        )


def _bench_server(url: str, wanted: BenchOptions, *, as_json: bool) -> None:
    from collections import Counter

    from rich.table import Table

    from bitnet_core.measure.server import measure_server

    clients, words = wanted.sequences, wanted.prompt_tokens or 128
    key = os.environ.get("BITNET_API_KEY", "")
    result = measure_server(url, clients, clients * wanted.repeat, words, wanted.max_tokens, key)
    document = result.document()
    if as_json:
        print_json(document)
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        first, token, gap = (document[name] for name in ("ttft_ms", "token_ms", "chunk_gap_ms"))
        rows = (
            ("model", f"{result.model} at {url}"),
            ("clients", f"{clients}, {document['requests']} requests in {result.seconds:.1f} s"),
            ("speed", f"{document['tokens_per_second']:,} tokens/s of all together ({document['tokens']:,} tokens)"),
            ("first token", f"{first['p50']:.0f} ms, 95% within {first['p95']:.0f} ms"),
            ("each token", f"{token['p50']:.2f} ms, 95% within {token['p95']:.2f} ms"),
            ("gap between chunks", f"{gap['p50']:.1f} ms, 95% within {gap['p95']:.1f} ms"),
            ("errors", str(document["errors"])),
        )
        for name, value in rows:
            table.add_row(cell(name, "bold"), cell(value))
        print_table(table)
    if result.errors:
        counted = Counter(result.errors).most_common(3)
        raise BitnetError("requests failed: " + "; ".join(f"{count} x {text[:200]}" for text, count in counted))


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
    from bitnet_hal.device import KERNEL_RESOURCES, SENSORS
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

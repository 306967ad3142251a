"""`bitnet bench`: speed, memory, and the share of the memory's bandwidth."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from bitnet_hal.errors import BitnetError, UsageError
from bitnet_hal.output import check_output, new_file

from bitnet_core.cli import options
from bitnet_core.cli.bench_devices import bench_devices
from bitnet_core.cli.bench_tables import show
from bitnet_core.cli.console import cell, print_json, print_table, progress_bar
from bitnet_core.cli.opening import opened, replicas, several_devices
from bitnet_core.cli.parameters import expanded
from bitnet_core.options.engine import EngineOptions, Speculate
from bitnet_core.options.fields import option
from bitnet_core.options.loading import LoadOptions
from bitnet_core.options.split import main_device

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
    show(result, profiles, report, speculation, as_json=as_json)


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

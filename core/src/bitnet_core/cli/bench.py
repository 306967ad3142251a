"""`bitnet bench`: speed, memory, and how near the memory's limit that is."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitnet_core.cli import options
from bitnet_core.cli.console import print_json, print_table
from bitnet_core.cli.devices import size
from bitnet_core.errors import UsageError

if TYPE_CHECKING:
    from bitnet_core.benchmark import BenchResult
    from bitnet_core.profiling import StepProfile


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    model: options.ModelOption = None,
    device: options.DeviceOption = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option("--prompt-tokens", "-p", min=1, help="Tokens of the prompt. Default: 512, or what fits."),
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=2, help="Tokens to generate.")] = 128,
    sequences: Annotated[int, typer.Option("--sequences", "-s", min=1, help="Texts at a time.")] = 1,
    repeat: Annotated[int, typer.Option(min=1, help="Runs; the medians are printed.")] = 3,
    synthetic: Annotated[
        str | None, typer.Option(metavar="SHAPE", help="Random weights of a shape instead of a file: 2b4t or tiny.")
    ] = None,
    as_json: options.JsonOption = False,
    kv: options.KvOption = options.KvType.f16,
    context: options.ContextOption = None,
    layout: options.LayoutOption = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Time each kernel of a step; FILE gets a Chrome trace of it.")
    ] = None,
) -> None:
    """Measure prefill and decode speed, load time and memory.

    The tokens of the prompt are random, and the model's end token does not end a run.
    """
    from bitnet_core.benchmark import measure
    from bitnet_core.profiling import chrome_trace
    from bitnet_core.profiling import profile as measure_kernels

    if model is not None and synthetic is not None:
        raise UsageError("--model and --synthetic exclude each other")
    start = time.perf_counter()
    with options.opened(options.ModelChoice(model, device, kv, context, layout, synthetic)) as loaded:
        result = measure(loaded, time.perf_counter() - start, prompt_tokens, max_tokens, repeat, sequences)
        profiles = measure_kernels(loaded.engine) if profile else []
    if profile:
        try:
            profile.write_text(json.dumps(chrome_trace(profiles)))
        except OSError as exc:
            raise UsageError(f"{profile} cannot be written: {exc.strerror or exc}") from exc
    if as_json:
        print_json(result.document())
    else:
        _print(result)
        for step in profiles:
            _print_kernels(step, result.read_bandwidth)


def _print(result: BenchResult) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    many = f"{result.sequences} texts of " if result.sequences > 1 else ""
    rows: list[tuple[str, Any]] = [
        ("model", result.model),
        ("device", f"{result.device} ({result.device_name}), {result.compute_path}"),
        ("load", f"{result.load_seconds:.2f} s"),
        ("prefill", f"{result.prefill_speed:.1f} tokens/s ({many}{result.prompt_tokens} tokens)"),
        (
            "decode",
            f"{result.decode_speed:.1f} tokens/s ({many}{result.generated_tokens} tokens, {result.repeat} runs)",
        ),
        ("host memory", size(result.host_memory)),
        (
            "device memory",
            f"weights {size(result.weight_memory)} and {size(result.wrapped_memory)} used in place, "
            f"KV cache {size(result.kv_memory)}, "
            f"scratch {size(result.scratch_memory)}",
        ),
        (
            "read per token",
            f"{result.bytes_per_token / 1e6:.1f} MB, {result.bandwidth_fraction:.0%} of the measured "
            f"{result.read_bandwidth / 1e9:.1f} GB/s",
        ),
    ]
    for name, value in rows:
        table.add_row(f"[bold]{name}[/bold]", value)
    print_table(table)


def _print_kernels(step: StepProfile, bandwidth: float) -> None:
    from rich.table import Table

    table = Table(title=f"{step.step}: {1e3 * step.seconds:.3f} ms", title_justify="left", box=None, pad_edge=False)
    for column in ("kernel", "launches", "us", "us each", "share", "GB/s", "of the bandwidth"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    for kernel in step.kernels():
        us, rate = 1e6 * kernel.seconds, kernel.bytes_per_second
        figures = (f"{us:.1f}", f"{us / kernel.launches:.2f}", f"{kernel.seconds / step.seconds:.0%}")
        table.add_row(kernel.kernel, str(kernel.launches), *figures, f"{rate / 1e9:.0f}", f"{rate / bandwidth:.0%}")
    print_table(table)

"""`bitnet perplexity`: how well a model predicts a text."""

from __future__ import annotations

from typing import Annotated

import typer
from bitnet_hal.errors import UsageError

from bitnet_core.cli import options
from bitnet_core.cli.console import print_json, print_line, progress_bar


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("perplexity")(perplexity)


def perplexity(
    file: Annotated[str, typer.Argument(metavar="FILE", help="UTF-8 text; - for stdin.")],
    model: options.ModelOption = None,
    device: options.DeviceOption = None,
    stride: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens scored per window; half the context if not given.")
    ] = None,
    as_json: options.JsonOption = False,
    kv: options.KvOption = options.KvType.f16,
    context: options.ContextOption = None,
    layout: options.LayoutOption = None,
    mmap: options.MmapOption = True,
    fallback: options.FallbackOption = True,
    activation_group_size: options.ActivationOption = None,
    threads: options.ThreadsOption = None,
    quiet: options.QuietOption = False,
    float_activations: Annotated[
        bool,
        typer.Option(
            "--float-activations",
            help="Compute in float64 on the host, with activations that are not rounded to int8. Slow; windows of 2048 "
            "tokens at most.",
        ),
    ] = False,
) -> None:
    """Print the perplexity of a text: exp of the mean negative log-likelihood per token."""
    if float_activations and device not in (None, "numpy", "numpy:0"):
        raise UsageError(f"--float-activations is of the numpy device alone, not of {device}; leave --device out")
    text = options.read_text(file)
    if not text:
        raise UsageError(f"{file} is empty")
    where = "numpy" if float_activations else device
    if float_activations and activation_group_size:
        raise UsageError("--float-activations has no activation scales: leave --activation-group-size out")
    place = (model, where, kv, context, layout, mmap)
    choice = options.ModelChoice(*place, fallback=fallback, activation_group_size=activation_group_size)
    with options.opened(choice) as loaded:
        with progress_bar() as progress:
            value = loaded.perplexity(text, stride=stride, float_activations=float_activations, progress=progress)
        if as_json:
            activations = "float64" if float_activations else "int8"
            used = loaded.device.info.request
            print_json({"perplexity": value, "model": loaded.name, "device": used, "activations": activations})
        else:
            print_line(f"{value:.4f}")

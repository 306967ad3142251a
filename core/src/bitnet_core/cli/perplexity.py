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
) -> None:
    """Print the perplexity of a text: exp of the mean negative log-likelihood per token."""
    text = options.read_text(file)
    if not text:
        raise UsageError(f"{file} is empty")
    place = (model, device, kv, context, layout, mmap)
    choice = options.ModelChoice(*place, fallback=fallback, activation_group_size=activation_group_size)
    with options.opened(choice) as loaded:
        with progress_bar() as progress:
            value = loaded.perplexity(text, stride=stride, progress=progress)
        if as_json:
            used = loaded.device.info.request
            print_json({"perplexity": value, "model": loaded.name, "device": used})
        else:
            print_line(f"{value:.4f}")

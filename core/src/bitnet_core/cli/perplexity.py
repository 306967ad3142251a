"""`bitnet perplexity`: how well a model predicts a text."""

from __future__ import annotations

from typing import Annotated

import typer

from bitnet_core.cli import options
from bitnet_core.cli.console import print_json, progress_bar
from bitnet_core.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("perplexity")(perplexity)


def perplexity(
    file: Annotated[str, typer.Argument(metavar="FILE", help="UTF-8 text; - for stdin.")],
    model: options.ModelOption = None,
    device: options.DeviceOption = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens scored per window; half the context if not given.")
    ] = None,
    as_json: options.JsonOption = False,
    kv: options.KvOption = options.KvType.f16,
    context: options.ContextOption = None,
    layout: options.LayoutOption = None,
) -> None:
    """Print the perplexity of a text: exp of the mean negative log-likelihood per token."""
    text = options.read_text(file)
    if not text:
        raise UsageError(f"{file} is empty")
    with options.opened(options.ModelChoice(model, device, kv, context, layout)) as loaded:
        with progress_bar() as progress:
            value = loaded.perplexity(text, stride=stride, progress=progress)
        if as_json:
            print_json({"perplexity": value, "model": loaded.name, "device": loaded.device.info.request})
        else:
            typer.echo(f"{value:.4f}")

"""`bitnet perplexity`: a model's perplexity on a text."""

from __future__ import annotations

from typing import Annotated

import typer
from bitnet_hal.errors import UsageError

from bitnet_core.cli import options
from bitnet_core.cli.console import print_json, print_line, progress_bar
from bitnet_core.cli.opening import opened
from bitnet_core.cli.parameters import expanded
from bitnet_core.cli.text_files import read_text
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.loading import LoadOptions


def register(app: typer.Typer) -> None:
    app.command("perplexity")(perplexity)


@expanded
def perplexity(
    file: Annotated[str, typer.Argument(metavar="FILE", help="UTF-8 text; - for stdin.")],
    *,
    model: options.ModelOptions,
    stride: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens scored per window; half the context if not given.")
    ] = None,
    as_json: options.JsonOption = False,
    loading: LoadOptions,
    engine: EngineOptions,
    quiet: options.QuietOption = False,
) -> None:
    """Print the perplexity of a text: exp of the mean negative log-likelihood per token."""
    text = read_text(file)
    if not text:
        raise UsageError(f"{file} is empty")
    with opened(model, loading, engine) as loaded:
        with progress_bar() as progress:
            value = loaded.perplexity(text, stride=stride, progress=progress)
        if as_json:
            used = loaded.device.info.request
            print_json({"perplexity": value, "model": loaded.name, "device": used})
        else:
            print_line(f"{value:.4f}")

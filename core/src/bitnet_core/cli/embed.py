"""`bitnet embed`: embeddings of the lines of a file."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from bitnet_hal.errors import UsageError

from bitnet_core.cli import options
from bitnet_core.cli.console import print_json, print_line
from bitnet_core.cli.opening import opened
from bitnet_core.cli.parameters import expanded
from bitnet_core.cli.text_files import read_text
from bitnet_core.options.embedding import EmbedOptions
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.fields import arguments_of
from bitnet_core.options.loading import LoadOptions


def register(app: typer.Typer) -> None:
    app.command("embed")(embed)


@expanded
def embed(
    file: Annotated[str, typer.Argument(metavar="FILE", help="UTF-8 texts, one on each line; - for stdin.")],
    *,
    model: options.ModelOptions,
    vectors: EmbedOptions,
    as_json: options.JsonOption = False,
    loading: LoadOptions,
    engine: EngineOptions,
    quiet: options.QuietOption = False,
) -> None:
    """Print a vector for each line of a file, as a list of numbers on a line."""
    texts = [line for line in read_text(file).split("\n") if line]
    if not texts:
        raise UsageError(f"{file} is empty")
    with opened(model, loading, engine) as loaded:
        found = loaded.embed(texts, **arguments_of(vectors)).tolist()
        if as_json:
            print_json({"embeddings": found, "model": loaded.name, "device": loaded.device.info.request})
            return
        for numbers in found:
            print_line(json.dumps(numbers))

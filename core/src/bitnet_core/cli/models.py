"""`bitnet pull` and `bitnet models`: models of the hub, and what is here of them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from bitnet_core.cli.console import cell, print_json, print_line, print_table, say
from bitnet_core.cli.devices import size
from bitnet_core.cli.options import JsonOption


def register(app: typer.Typer) -> None:
    """Add both commands."""
    app.command("pull")(pull)
    app.command("models")(models)


def pull(
    model: Annotated[str, typer.Argument(metavar="hf:OWNER/REPO[:FILE][@REVISION]", help="A model of the hub.")],
) -> None:
    """Fetch a model of the Hugging Face Hub, or bring the copy here up to date; prints where it lies.

    Without a file the form that fits best is taken. HF_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE are heeded.
    """
    from bitnet_core.hub import Reference
    from bitnet_core.hub import pull as fetch

    print_line(fetch(Reference.parse(model), say))


def models(as_json: JsonOption = False) -> None:
    """List the models of the hub that are here, as -m takes them."""
    from rich.table import Table

    from bitnet_core.hub import cached_models

    found = cached_models()
    if as_json:
        print_json([asdict(model) | {"path": str(model.path)} for model in found])
        return
    if not found:
        say("No models of the hub are here; bitnet pull hf:OWNER/REPO fetches one.")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("model", "form", "size", "commit", "used"):
        table.add_column(column)
    for model in found:
        used = datetime.fromtimestamp(model.used).strftime("%Y-%m-%d")
        table.add_row(*map(cell, (model.reference, model.form, size(model.nbytes), model.commit[:12], used)))
    print_table(table)

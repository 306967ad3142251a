"""`bitnet new-backend`: the skeleton of a plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitnet_core.cli.console import print_line
from bitnet_core.scaffold import write_backend


def register(app: typer.Typer) -> None:
    app.command("new-backend")(new_backend)


def new_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the backend, as in --device NAME.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; it must not exist or be empty.")],
) -> None:
    """Write a plugin to start from. Its kernels are those of the numpy reference, and its tests pass."""
    written = write_backend(name, folder)
    print_line(f"{len(written)} files in {folder}. Next: cd {folder}; pip install -e '.[test]'; pytest")

"""`bitnet kernels`: the contracts of the kernel catalogue."""

from __future__ import annotations

from typing import Annotated

import typer
from bitnet_hal.errors import UsageError

from bitnet_core.cli.console import print_line


def register(app: typer.Typer) -> None:
    app.command("kernels")(kernels)


def kernels(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A kernel, or 'all'; without it, the list of kernels.")
    ] = None,
) -> None:
    """Print a kernel's meaning, bindings, parameters, constants and grid."""
    from bitnet_hal.kernels.catalogue import CATALOGUE
    from bitnet_hal.kernels.describe import describe, describe_all, table

    if name is None:
        rows = [(spec.name, "required" if spec.base else "optional") for spec in CATALOGUE.values()]
        print_line(table(("kernel", "a device"), *rows))
    elif name == "all":
        print_line(describe_all().removesuffix("\n"))
    elif name in CATALOGUE:
        print_line(describe(CATALOGUE[name]))
        print_line("\nLetters, caches, steps and weights: see the conventions at the head of `bitnet kernels all`.")
    else:
        raise UsageError(f"there is no kernel '{name}'. Kernels: {', '.join(CATALOGUE)}")

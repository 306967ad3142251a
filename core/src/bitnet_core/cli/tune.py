"""`bitnet tune`: find the fastest device by measuring."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitnet_core.cli import options
from bitnet_core.cli.console import cell, print_json, print_table, progress_bar, say
from bitnet_core.cli.opening import source_of
from bitnet_core.cli.parameters import Field, expanded

if TYPE_CHECKING:
    from bitnet_core.measure.tune import TunedDevice


def register(app: typer.Typer) -> None:
    app.command("tune")(tune)


@expanded
def tune(
    model: Annotated[str | None, Field(options.ModelOptions)] = None,
    synthetic: options.SyntheticOption = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, metavar="X", help="Time for all devices together, in seconds.")
    ] = 10.0,
    as_json: options.JsonOption = False,
) -> None:
    """Time the model's products and one step on every device, and prefer the fastest from now on.

    Results are kept in the cache folder and hold until the device, its driver or the backend's kernels change; `auto`
    and `gpu` use them, and so do the products' tilings on devices that offer several.
    """
    from bitnet_core.measure.tune import tune as measure

    source, name = source_of(model, synthetic)
    try:
        with progress_bar() as progress:
            found = measure(source, name, seconds, progress)
    finally:
        source.close()
    if as_json:
        print_json([_document(speed) for speed in found])
    else:
        _print(name, found)


def _document(speed: TunedDevice) -> dict[str, Any]:
    return {
        "device": speed.info.request,
        "name": speed.info.name,
        "token_seconds": speed.token_seconds,
        "products": [asdict(product) for product in speed.products],
        "reason": speed.reason,
    }


def _print(name: str, found: list[TunedDevice]) -> None:
    from bitnet_hal.discovery.order import ranked
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("Device", "Name", "ms per token", "tokens/s", "better tilings"):
        table.add_column(column, overflow="fold", justify="left" if column in ("Device", "Name") else "right")
    for speed in found:
        if not speed.token_seconds:
            table.add_row(cell(speed.info.request), cell(speed.reason))
            continue
        better = sum(product.tuning is not None for product in speed.products)
        figures = (f"{1e3 * speed.token_seconds:.2f}", f"{1 / speed.token_seconds:.1f}", better)
        table.add_row(*map(cell, (speed.info.request, speed.info.name, *figures)))
    print_table(table)
    for speed in found:
        if left := sum(product.left for product in speed.products):
            say(f"{speed.info.request}: no time was left for {left} tilings; repeat, or allow more --seconds")
    first = ranked(speed.info for speed in found)[0]
    say(f"measured with {name}; of these `auto` takes {first.request}")

"""`bitnet devices`: what a request can name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitnet_core.cli.console import cell, print_json, print_table, say
from bitnet_core.cli.start import uncollected

if TYPE_CHECKING:
    from bitnet_core.hal.device import DeviceInfo


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("devices")(devices)


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show everything the drivers tell.")] = False,
) -> None:
    """List the compute devices, best first."""
    from bitnet_core.discovery.listing import asked_apart
    from bitnet_core.discovery.registry import registry

    with uncollected(), asked_apart() as wait:
        from rich.console import Console as Console  # what is needed later is imported while drivers begin
        from rich.table import Table

        from bitnet_core.discovery.measured import token_seconds
        from bitnet_core.discovery.selection import devices as list_devices
        from bitnet_core.discovery.selection import in_order, rank, reason

        wait()
        found = in_order(list_devices())
    seconds = token_seconds(found)
    if as_json:
        print_json([{**describe(info), "rank": rank(info), "place": reason(info, seconds)} for info in found])
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("Device", "Name", "Type", "Memory", "Driver"):
        table.add_column(column, overflow="fold")
    for info in found:
        kind = f"{info.type.value} (fake)" if info.fake else info.type.value
        memory = size(info.total_memory) if info.total_memory else "?"
        table.add_row(*map(cell, (info.request, info.name, kind, memory, info.driver)))
        if verbose:
            from bitnet_core.engine.options import share_rule  # the engine takes its time to import

            table.add_row("", cell(f"place: {reason(info, seconds)}", "dim"))
            table.add_row("", cell(f"key/value cache: {share_rule(info)}", "dim"))
            for name, value in describe(info).items():
                if name not in ("device", "name", "type", "total_memory", "driver") and value not in ("", 0, [], {}):
                    table.add_row("", cell(f"{name}: {_plain(value)}", "dim"))
    print_table(table)
    if left_out := [entry.name for entry in registry().quarantined]:
        say(f"Left out: {', '.join(left_out)}. `bitnet doctor` tells why.")


def describe(info: DeviceInfo) -> dict[str, Any]:
    """A device as JSON; sizes in bytes, 0 where the driver does not tell."""
    return {
        "device": info.request,
        "backend": info.backend,
        "index": info.index,
        "name": info.name,
        "type": info.type.value,
        "vendor": info.vendor,
        "driver": info.driver,
        "total_memory": info.total_memory,
        "max_allocation": info.max_allocation,
        "max_binding": info.max_binding,
        "alignment": info.alignment,
        "transfer": info.transfer.value,
        "physical_id": info.physical_id,
        "kernels": sorted(info.kernels),
        "features": sorted(info.features),
        "fake": info.fake,
        "extra": dict(info.extra),
    }


def size(nbytes: int) -> str:
    """A size for people."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)

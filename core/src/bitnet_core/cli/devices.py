"""`bitnet devices`: the compute devices of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitnet_core.cli.blocks import print_block
from bitnet_core.cli.console import cell, print_json, print_table, say
from bitnet_core.cli.start import uncollected
from bitnet_core.units import size

if TYPE_CHECKING:
    from bitnet_hal.device import DeviceInfo


_IN_LINES = frozenset(
    ("device", "index", "name", "type", "total_memory", "driver", "fake", "extra", "batch_invariant_rows")
)
"""The first lines about a device."""
_ROUTES = {"peer copy": "from memory to memory", "host memory": "through host memory"}
"""Descriptions of the routes of copies between devices (bitnet_hal.p2p)."""
_BYTES = frozenset(("max_allocation", "max_binding", "shared_memory", "workgroup_storage"))


def register(app: typer.Typer) -> None:
    app.command("devices")(devices)


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show everything that the drivers report.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Then print devices that arrive or depart, until Ctrl-C.")
    ] = False,
) -> None:
    """List the compute devices, best first."""
    from bitnet_hal.discovery.listing import probe_in_forks
    from bitnet_hal.discovery.registry import kernels_hash

    with uncollected(), probe_in_forks() as wait:
        from bitnet_hal.discovery.order import in_order, rank, reason
        from bitnet_hal.discovery.selection import devices as list_devices
        from bitnet_hal.tuning.measured import token_seconds
        from rich.console import Console as Console  # imported while drivers start
        from rich.table import Table as Table

        wait()
        found = in_order(list_devices())
    seconds = token_seconds(found, kernels_hash)
    if as_json and not watch:
        print_json([{**describe(info), "rank": rank(info), "place": reason(info, seconds)} for info in found])
        return
    if not as_json:
        _print(found, seconds, verbose=verbose)
    if watch:
        from bitnet_core.cli.watching import watch_devices

        watch_devices(found, as_json=as_json)


def _print(found: list[DeviceInfo], seconds: Mapping[str, float], *, verbose: bool) -> None:
    from bitnet_hal.discovery.order import reason
    from bitnet_hal.discovery.registry import registry

    if verbose:
        for info in found:
            lines = _details(info, reason(info, seconds)) + _routes(info, found)
            print_block(f"{info.request}  {info.name}", *lines)
    else:
        from rich.table import Table

        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("Device", "Name", "Type", "Memory", "Driver"):
            table.add_column(column, overflow="fold")
        for info in found:
            table.add_row(*map(cell, (info.request, info.name, _kind(info), _memory(info), info.driver)))
        print_table(table)
    if left_out := [entry.name for entry in registry().quarantined]:
        say(f"Ignored: {', '.join(left_out)}. `bitnet doctor` says why.")


def describe(info: DeviceInfo) -> dict[str, Any]:
    """Return a device as JSON; sizes in bytes, 0 if the driver does not report them."""
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
        "peers": sorted(info.peers),
        "kernels": sorted(info.kernels),
        "features": sorted(info.features),
        "batch_invariant_rows": dict(sorted(info.batch_invariant_rows.items())),
        "fake": info.fake,
        "extra": dict(info.extra),
    }


def _details(info: DeviceInfo, place: str) -> list[str]:
    """Return the drivers' information, as lines."""
    from bitnet_core.engine.capacity import share_rule  # imported here because the engine's import is slow

    lines = [
        f"type: {_kind(info)}",
        f"memory: {_memory(info)}",
        f"driver: {info.driver or 'not reported'}",
        f"place under auto: {place}",
        f"key/value cache: {share_rule(info)}",
        f"batch-invariant rows: {_invariant_rows(info)}",
    ]
    reported = {
        name: value for name, value in describe(info).items() if name not in _IN_LINES and value not in ("", 0, [])
    }
    for name, value in {**reported, **info.extra}.items():
        lines.append(f"{name.replace('_', ' ')}: {_plain(name, value)}")
    return lines


def _routes(info: DeviceInfo, found: list[DeviceInfo]) -> list[str]:
    """Return a line for each route of copies to other devices."""
    from bitnet_hal import p2p

    routes: dict[str, list[str]] = {}
    for other in found:
        if (route := p2p.probe(info, other)) != "none":
            routes.setdefault(route, []).append(other.request)
    return [f"to {', '.join(others)}: {_ROUTES[route]}" for route, others in routes.items()]


def _invariant_rows(info: DeviceInfo) -> str:
    """Return the maximum rows of a launch that are batch-invariant: for most kernels, and for those with fewer rows."""
    from bitnet_hal.device import ANY_ROWS

    if not info.batch_invariant_rows:
        return "1"
    most = max(info.batch_invariant_rows.values())
    fewer = [f"{name} {rows}" for name, rows in sorted(info.batch_invariant_rows.items()) if rows < most]
    return ", ".join(["any number" if most == ANY_ROWS else str(most), *fewer])


def _kind(info: DeviceInfo) -> str:
    return f"{info.type.value} (fake)" if info.fake else info.type.value


def _memory(info: DeviceInfo) -> str:
    return size(info.total_memory) if info.total_memory else "?"


def _plain(name: str, value: Any) -> str:
    """Format a value; sizes in bytes with a unit."""
    if name in _BYTES and isinstance(value, int):
        return size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)

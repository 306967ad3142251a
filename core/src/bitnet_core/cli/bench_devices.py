"""`bitnet bench` on several devices: the speed of each and their sum."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

from bitnet_core.cli.console import cell, print_json, print_table, progress_bar, say

if TYPE_CHECKING:
    from bitnet_core.api.replicas import ReplicaOpener, SeveralDevices
    from bitnet_core.measure.replicas import ReplicaResult


def bench_devices(
    several: SeveralDevices,
    opener: ReplicaOpener,
    prompt_tokens: int | None,
    max_tokens: int,
    repeat: int,
    sequences: int,
    *,
    as_json: bool,
) -> None:
    """Measure one model on several devices, each in a process of its own, and print the sum and the parts."""
    from bitnet_core.api.replicas import load_replicas
    from bitnet_core.engine.replicas.remote_engine import RemoteEngine
    from bitnet_core.measure.replicas import measure_replicas

    with ExitStack() as stack:
        with progress_bar("starting"):
            loaded = stack.enter_context(load_replicas(opener, several))
        first = cast(RemoteEngine, loaded.engine)
        engines = [first]
        for name in several.names(loaded.device.info.request):
            engine = first.beside(several.open(name))
            stack.callback(engine.close)
            engines.append(engine)
        with progress_bar() as progress:
            result = measure_replicas(loaded.name, engines, prompt_tokens, max_tokens, repeat, sequences, progress)
    if as_json:
        print_json(result.document())
    else:
        _print(result)


def _print(result: ReplicaResult) -> None:
    from rich.table import Table

    each = f"{result.sequences} requests of {result.prompt_tokens} + {result.generated_tokens} tokens on each device"
    table = Table(title=f"{result.model}, {each}, {result.repeat} runs; tokens/s", title_justify="left", box=None)
    columns = ("device", "prefill alone", "decode alone", "all alone", "prefill", "decode", "all")
    for column in columns:
        table.add_column(column, justify="left" if column == "device" else "right")
    rows = [(f"{one.device} ({one.device_name})", one.alone, one.together) for one in result.devices]
    for name, alone, together in (*rows, ("sum", result.alone, result.together)):
        figures = [alone.prefill, alone.decode, alone.whole, together.prefill, together.decode, together.whole]
        table.add_row(*map(cell, (name, *(f"{figure:,.1f}" for figure in figures))))
    print_table(table)
    share = result.together.whole / result.alone.whole
    say(f"together {share:.0%} of the sum of the devices alone (all: answers in the time of prompts and answers)")
    if len({one.processor for one in result.devices}) < len(result.devices):
        say(f"{result.share_of_processors:.0%} of the sum of the processors, each with its fastest device alone")

"""What `bitnet serve` makes of its options."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import bitnet_core.api
import pytest
import typer
from bitnet_server import command
from typer.testing import CliRunner


@pytest.mark.parametrize(
    ("arguments", "arrived"),
    [
        (
            [],
            {
                "activation_group_size": None,
                "kv_dtype": "f16",
                "kv_cache_bytes": None,
                "eviction": "lru",
                "max_sequences": 32,
            },
        ),
        (["--activation-group-size", "128"], {"activation_group_size": 128}),
        (
            ["--kv-cache-type", "int8", "--kv-cache-size", "1G", "--context", "64"],
            {"kv_dtype": "int8", "kv_cache_bytes": 1 << 30, "context": 64},
        ),
        (["--layout", "B", "--eviction", "lfu"], {"layout": "B", "eviction": "lfu"}),
    ],
)
def test_options_of_the_model_arrive(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], arrived: dict[str, Any]
) -> None:
    loads = list[Callable[[], Any]]()
    monkeypatch.setattr(command, "_start", lambda _, load, quiet: loads.append(load))
    device = SimpleNamespace(info=SimpleNamespace(backend="numpy"))
    monkeypatch.setattr(bitnet_core.api, "load", lambda *_, **options: SimpleNamespace(device=device, options=options))
    app = typer.Typer()
    app.command()(command.serve)
    done = CliRunner().invoke(app, ["-d", "numpy", *arguments])
    assert done.exit_code == 0, done.output
    options = loads[0]().options
    assert {name: options[name] for name in arrived} == arrived


@pytest.mark.parametrize(("quiet", "lines"), [(False, ["address", "model"]), (True, ["address"])])
def test_a_log_gets_few_lines(capsys: pytest.CaptureFixture[str], quiet: bool, lines: list[str]) -> None:
    tell = command._teller(quiet)
    for line in ("address", "model", "figures"):
        tell(line)
    assert capsys.readouterr().err.splitlines() == lines

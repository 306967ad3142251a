"""Options of `bitnet serve`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from bitnet_core.cli.options import ModelOptions
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.fields import arguments_of, options_of
from bitnet_core.options.loading import LoadOptions
from bitnet_hal.errors import UsageError
from bitnet_server import command
from bitnet_server.model_list import ListedModel, Sources
from bitnet_server.settings import Settings
from typer.testing import CliRunner


@pytest.mark.parametrize(
    ("arguments", "arrived"),
    [
        (
            [],
            {
                "activation_group_size": None,
                "kv_cache_type": "f16",
                "kv_cache_size": None,
                "eviction": "lru",
                "max_sequences": 32,
            },
        ),
        (["--activation-group-size", "128"], {"activation_group_size": 128}),
        (
            ["--kv-cache-type", "int8", "--kv-cache-size", "1G", "--context", "64"],
            {"kv_cache_type": "int8", "kv_cache_size": 1 << 30, "context": 64},
        ),
        (["--layout", "B", "--eviction", "lfu"], {"layout": "B", "eviction": "lfu"}),
        (["--no-mmap", "--no-fallback"], {"mmap": False, "fallback": False}),
    ],
)
def test_options_of_the_model_arrive(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], arrived: dict[str, Any]
) -> None:
    listed: list[ListedModel] = []
    monkeypatch.setattr(command, "_start", lambda _, models, quiet: listed.extend(models))
    app = typer.Typer()
    app.command()(command.serve)
    done = CliRunner().invoke(app, ["-d", "numpy", *arguments])
    assert done.exit_code == 0, done.output
    options = arguments_of(listed[0].loading) | arguments_of(listed[0].engine)
    assert {name: options[name] for name in arrived} == arrived


def test_threads_take_short_turns_while_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    before, turns = sys.getswitchinterval(), []
    monkeypatch.setattr(command, "_start", lambda *_: turns.append(sys.getswitchinterval()))
    app = typer.Typer()
    app.command()(command.serve)
    assert CliRunner().invoke(app, ["-d", "numpy"]).exit_code == 0
    assert turns == [pytest.approx(command.TURN)]
    assert sys.getswitchinterval() == before


def test_a_model_is_loaded_after_room_was_made() -> None:
    asked: list[tuple[str, int]] = []
    one = ListedModel(None, "numpy", LoadOptions(), EngineOptions(context=128, max_sequences=2))
    with command.loader(one)(lambda device, plan: asked.append((device.info.request, plan.weights))) as model:
        assert asked == [("numpy:0", model.engine.memory_plan().weights)]


def test_a_split_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch, serve: Any) -> None:
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda,vulkan")
    options = EngineOptions(context=128, max_sequences=2, split="cuda:2,vulkan:4")
    load = command.loader(ListedModel(None, None, LoadOptions(), options))
    with serve(lambda: load(lambda device, plan: None)) as served:
        assert any(", layers cuda:0 2, vulkan:0 4, 2 concurrent" in line for line in served.told)


def test_serve_has_every_option_of_the_model() -> None:
    app = typer.Typer()
    app.command()(command.serve)
    shown: Any = typer.main.get_command(app)
    flags = {flag for parameter in shown.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    for declaring in (ModelOptions, Sources, LoadOptions, EngineOptions, Settings):
        for one in options_of(declaring).values():
            assert {part for flag in one.flags for part in flag.split("/")} <= flags, one.name


def test_settings_are_read_from_lists_and_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken: list[Settings] = []
    monkeypatch.setattr(command, "_start", lambda settings, models, quiet: taken.append(settings))
    monkeypatch.setenv("BITNET_API_KEY", "third")
    keys = tmp_path / "keys"
    keys.write_text("first\n\nsecond\n")
    app = typer.Typer()
    app.command()(command.serve)
    arguments = ["--alias", "a, b", "--allowed-hosts", "Box,*", "--api-key-file", str(keys), "--ssl-certfile", "c.pem"]
    done = CliRunner().invoke(app, [*arguments, "-d", "numpy", "--slots"])
    assert done.exit_code == 0, done.output
    assert taken[0] == Settings(
        names=("a", "b"),
        allowed_hosts=("box", "*"),
        api_keys=("first", "second", "third"),
        certificate="c.pem",
        slots=True,
    )
    keys.write_text("\n")
    with pytest.raises(UsageError, match="holds no API key"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize(("quiet", "lines"), [(False, ["address", "model"]), (True, ["address"])])
def test_a_log_gets_few_lines(capsys: pytest.CaptureFixture[str], quiet: bool, lines: list[str]) -> None:
    tell = command._teller(quiet)
    for line in ("address", "model", "figures"):
        tell(line)
    assert capsys.readouterr().err.splitlines() == lines

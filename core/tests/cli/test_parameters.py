"""Commands whose options are expanded from dataclasses."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest
import typer
from bitnet_core.cli.app import COMMANDS, build_app
from bitnet_core.cli.options import ModelOptions, ThinkingOptions
from bitnet_core.cli.parameters import Field, Given, expanded
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.fields import options_of
from bitnet_core.options.loading import Layout, LoadOptions
from bitnet_core.options.sampling import SamplingParams
from typer.testing import CliRunner

seen: dict[str, Any] = {}


@expanded
def example(
    word: Annotated[str, typer.Argument()] = "",
    *,
    engine: EngineOptions,
    sampling: Annotated[dict[str, Any], Given(SamplingParams, "the model's own")],
    layout: Annotated[Layout | None, Field(LoadOptions)] = None,
) -> None:
    """Keep what arrives."""
    seen.update(word=word, engine=engine, sampling=sampling, layout=layout)


def run(*arguments: str) -> dict[str, Any]:
    app = typer.Typer()
    app.command()(example)
    seen.clear()
    done = CliRunner().invoke(app, arguments)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return dict(seen) if done.exit_code == 0 else {"output": done.output}


def test_nothing_given_is_every_default() -> None:
    assert run() == {"word": "", "engine": EngineOptions(), "sampling": {}, "layout": None}


def test_values_arrive_as_their_python_types() -> None:
    given = ("x", "--kv-cache-type", "int8", "--activation-group-size", "128", "--kv-cache-size", "1.5G", "-c", "64")
    found = run(*given, "--temperature", "0.5", "--top-k", "7", "--layout", "B")
    assert found["engine"] == EngineOptions("int8", 128, 64, 3 << 29)
    assert found["sampling"] == {"temperature": 0.5, "top_k": 7}
    assert (found["word"], found["layout"]) == ("x", "B")


@pytest.mark.parametrize(
    "arguments", [("--kv-cache-type", "f8"), ("--top-p", "2"), ("-c", "1"), ("--activation-group-size", "64")]
)
def test_choices_and_ranges_are_the_fields_own(arguments: tuple[str, ...]) -> None:
    assert arguments[0] in run(*arguments)["output"]


def test_a_parser_names_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="'many' is not a valid size"):
        run("--kv-cache-size", "many")


def flags_of(command: Any) -> set[str]:
    return {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}


def flags(declaring: type) -> set[str]:
    shown = [flag for one in options_of(declaring).values() for flag in one.flags]
    return {part for flag in shown for part in flag.split("/")}


@pytest.mark.parametrize("name", ["run", "chat", "bench", "perplexity"])
def test_every_command_that_loads_a_model_has_every_option(name: str) -> None:
    assert any(name in names for names in COMMANDS.values())
    commands: Any = typer.main.get_command(build_app(name))
    wanted = flags(ModelOptions) | flags(LoadOptions) | flags(EngineOptions)
    if name in ("run", "chat"):
        wanted |= flags(SamplingParams) | flags(ThinkingOptions)
    assert wanted - flags_of(commands.commands[name]) == set()


def test_the_help_names_every_synthetic_shape() -> None:
    words = typer.main.get_command(build_app("bench")).commands["bench"]  # type: ignore[attr-defined]  # a group
    shown = next(parameter.help for parameter in words.params if parameter.name == "synthetic")
    named = re.split(r", | or ", shown.partition("instead of a file: ")[2].removesuffix("."))
    assert {*named} == {*SHAPES}

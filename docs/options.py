"""Tables of options, and the keys of the Python API's TypedDicts, from the dataclasses that declare the options."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bitnet_core.cli.options import ModelOptions, TextOptions, ThinkingOptions
from bitnet_core.options.embedding import EmbedOptions
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.fields import DeclaredOption, options_of
from bitnet_core.options.loading import LoadOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_hal.kernels.describe import table

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "bitnet-server" / "src"))  # it need not be installed
from bitnet_server.model_list import Sources, TableOptions
from bitnet_server.settings import Settings

_CLASSES = (
    EmbedOptions,
    EngineOptions,
    LoadOptions,
    ModelOptions,
    SamplingParams,
    Settings,
    Sources,
    TableOptions,
    TextOptions,
    ThinkingOptions,
)


def _declared(classes: Sequence[str]) -> Iterator[DeclaredOption]:
    known = {one.__name__: one for one in _CLASSES}
    for name in classes:
        yield from options_of(known[name]).values()


def python_table(classes: Sequence[str]) -> str:
    """Return a table of options by their Python names."""
    rows = [(f"`{one.name}`", _range(one), _default(one), one.option.help) for one in _declared(classes)]
    return table(("argument", "value", "default", "meaning"), *rows)


def flag_table(classes: Sequence[str]) -> str:
    """Return a table of options by their names on the command line, which the Python-only ones are not in."""
    shown = [one for one in _declared(classes) if one.flags]
    rows = [(_flags(one), _flag_value(one), _default(one), one.option.help) for one in shown]
    return table(("option", "value", "default", "meaning"), *rows)


def _flags(one: DeclaredOption) -> str:
    return ", ".join(f"`{flag}`" for flag in one.flags)


def _flag_value(one: DeclaredOption) -> str:
    """Return the value's placeholder in the help, or else its type and range; "" for a flag without a value."""
    if one.plain is bool:
        return ""
    return one.option.metavar or _range(one)


def keywords(classes: Sequence[str]) -> str:
    """Return the keys of a TypedDict; every sampling option may be None, for the model's own."""
    optional = " | None" if "SamplingParams" in classes else ""
    lines = []
    for one in _declared(classes):
        lines.append(f"    {one.name}: {one.source.removesuffix(' | None')}{optional or _suffix(one)}")
    return "\n".join(lines)


def _suffix(one: DeclaredOption) -> str:
    return " | None" if one.source.endswith(" | None") else ""


def _range(one: DeclaredOption) -> str:
    return one.kind.words.replace("|", "\\|")


def _default(one: DeclaredOption) -> str:
    if one.default is None or isinstance(one.default, tuple | dict) or one.name == "pool":
        return ""
    if isinstance(one.default, bool):
        return "on" if one.default else "off"
    return f"{one.default:g}" if isinstance(one.default, float) else str(one.default)

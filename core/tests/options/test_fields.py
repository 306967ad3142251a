"""Options that are declared once: their checks, and their names everywhere."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import pytest
from bitnet_core.api.options import ChatOptions, LoadSettings
from bitnet_core.options.embedding import EmbedOptions
from bitnet_core.options.engine import EngineOptions, KvCacheType
from bitnet_core.options.fields import arguments_of, check_options, option, options_of
from bitnet_core.options.loading import Layout, LoadOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_hal.errors import UsageError
from bitnet_hal.kernels.catalogue import ACT_GROUP_SIZES, KV_TYPES


@dataclass(frozen=True, slots=True)
class Example:
    """An option of each kind."""

    number: float = option(1.0, at_least=0, at_most=2, help="A number.")
    whole: int | None = option(None, above=3, help="A whole number.")
    flag: bool = option(True, help="A flag.")
    choice: Literal["a", "b"] = option("a", help="A choice.")
    texts: tuple[str, ...] = option((), help="Texts.")
    pairs: Mapping[int, float] = option(factory=dict, help="Pairs.")
    plain: str = "not an option"

    def __post_init__(self) -> None:
        check_options(self)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("number", "x", "number must be a number from 0 to 2, not 'x'"),
        ("number", 2.5, "number must be a number from 0 to 2, not 2.5"),
        ("number", float("nan"), "number must be a number from 0 to 2, not nan"),
        ("number", True, "number must be a number from 0 to 2, not True"),
        ("number", None, "number must be a number from 0 to 2, not None"),
        ("number", 10**400, "number must be a number from 0 to 2, not 1"),
        ("whole", 3, "whole must be a whole number above 3, not 3"),
        ("whole", 4.0, "whole must be a whole number above 3, not 4.0"),
        ("flag", 1, "flag must be True or False, not 1"),
        ("choice", "c", "choice must be one of a, b, not 'c'"),
        ("choice", ["a"], r"choice must be one of a, b, not \['a'\]"),
        ("texts", "ab", "texts must be a list of texts, not 'ab'"),
        ("texts", iter("ab"), "texts must be a list of texts, not"),
        ("pairs", {"a": 1}, "pairs must be a mapping of whole numbers to numbers, not"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(name: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        Example(**{name: value})


def test_numpy_scalars_become_plain_numbers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = Example(np.float32(0.5), np.int64(4), np.bool_(False), texts=["a"], pairs={np.int32(1): np.float16(2)})  # type: ignore[arg-type]
    assert made == Example(0.5, 4, False, texts=("a",), pairs={1: 2.0})
    values = [made.number, made.whole, made.flag, *made.pairs, *made.pairs.values()]
    assert [type(value) for value in values] == [float, int, bool, int, float]
    assert type(EngineOptions(stream_interval=np.float32(0.5)).stream_interval) is float  # type: ignore[arg-type]
    assert type(SamplingParams(seed=np.int64(3)).seed) is int  # type: ignore[arg-type]


def test_flags_come_from_the_names() -> None:
    flags = {name: one.flags for name, one in options_of(Example).items()}
    assert flags["number"] == ("--number",)
    assert flags["flag"] == ("--flag/--no-flag",)
    assert options_of(SamplingParams)["top_k"].flags == ("--top-k",)


@pytest.mark.parametrize("declaring", [SamplingParams, EngineOptions, LoadOptions, EmbedOptions])
def test_the_command_line_has_the_names_of_python(declaring: type) -> None:
    for name, one in options_of(declaring).items():
        assert not one.flags or one.flags[0].partition("/")[0] == "--" + name.replace("_", "-")


def test_arguments_are_the_options_with_their_values() -> None:
    expected = {"number": 1.0, "whole": 4, "flag": False, "choice": "a", "texts": (), "pairs": {}}
    assert arguments_of(Example(whole=4, flag=False)) == expected
    assert LoadOptions(**arguments_of(LoadOptions(mmap=False))) == LoadOptions(mmap=False)


@pytest.mark.parametrize("declaring", [SamplingParams, EngineOptions, LoadOptions])
def test_every_option_has_a_help_text_that_is_a_sentence(declaring: type) -> None:
    for one in options_of(declaring).values():
        assert one.option.help[0].isupper() or one.option.help.startswith("--")
        assert one.option.help.endswith(".")


def test_python_has_every_option() -> None:
    assert {*options_of(SamplingParams)} <= {*get_type_hints(ChatOptions)}
    assert {*options_of(EngineOptions), *options_of(LoadOptions)} <= {*get_type_hints(LoadSettings)}


def test_the_choices_are_those_of_the_contract() -> None:
    """They are written out because the contract's tables take too long to import for `--help`."""
    assert set(get_args(KvCacheType)) == set(KV_TYPES)
    assert options_of(EngineOptions)["activation_group_size"].choices == ACT_GROUP_SIZES[1:]
    assert get_args(Layout) == ("A", "B", "C")

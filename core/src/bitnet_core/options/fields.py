"""Dataclass fields that declare options for the command line, Python, the server, the chat page and the docs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from bitnet_hal.errors import UsageError, short

from bitnet_core.options.kinds import Kind, checked, kind_of

MODEL, DEVICE, CACHE, SAMPLING = "Model", "Device", "Cache", "Sampling"
"""Groups of options in the help."""


@dataclass(frozen=True, slots=True)
class Option:
    """Metadata of an option beside its field's name, type and default.

    flags: names on the command line; None: --name with hyphens (--name/--no-name if it is on by default), empty: not
    on the command line. at_least, at_most, above: the range of a number. parse: converts the command line's text, and
    raises UsageError. aliases: further names of the field in requests to the server. gguf: name of the general.sampling
    key by which a model file states its own default.
    """

    help: str
    group: str = ""
    flags: tuple[str, ...] | None = None
    metavar: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    parse: Callable[[str], Any] | None = None
    aliases: tuple[str, ...] = ()
    gguf: str = ""

    @property
    def range(self) -> str:
        """The range in words, such as "from 0 to 1"; "" if there is none."""
        if self.above is not None:
            return f"above {self.above:g}"
        if self.at_least is None:
            return ""
        if self.at_most is None:
            return f"of {self.at_least:g} or more"
        return f"from {self.at_least:g} to {self.at_most:,.9g}"

    def allows(self, value: float) -> bool:
        """Return True if a number is finite and within the range."""
        low = -math.inf if self.at_least is None else self.at_least
        high = sys.float_info.max if self.at_most is None else self.at_most
        return low <= value <= high and (self.above is None or value > self.above) and value > -math.inf


def option(default: Any = MISSING, *, factory: Any = MISSING, **settings: Any) -> Any:
    """Declare a dataclass field that is an option; settings: the fields of Option."""
    metadata = {"option": Option(**settings)}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class DeclaredOption:
    """An option as its dataclass declares it. annotation: the resolved type; source: the type as it is written."""

    name: str
    annotation: Any
    source: str
    default: Any
    option: Option

    @property
    def plain(self) -> Any:
        """The type without None."""
        if type(None) not in get_args(self.annotation):
            return self.annotation
        kept = tuple(part for part in get_args(self.annotation) if part is not type(None))
        return kept[0] if len(kept) == 1 else Union[kept]  # noqa: UP007 - a union of a tuple

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of a Literal type, () of another."""
        return get_args(self.plain) if get_origin(self.plain) is Literal else ()

    @property
    def flags(self) -> tuple[str, ...]:
        """The option's names on the command line; () if it has none."""
        if self.option.flags is not None:
            return self.option.flags
        name = self.name.replace("_", "-")
        return (f"--{name}/--no-{name}",) if self.default is True else (f"--{name}",)

    @property
    def kind(self) -> Kind:
        """The type and range, for `checked`."""
        kind = kind_of(self.annotation)
        words = " ".join(filter(None, (kind.words, self.option.range)))

        def convert(value: Any) -> Any:
            plain = kind.convert(value)
            if isinstance(plain, int | float) and not isinstance(plain, bool) and not self.option.allows(plain):
                raise ValueError(value)
            return plain

        return Kind(words, convert)


@cache
def options_of(declaring: Any) -> dict[str, DeclaredOption]:
    """Return the options of a dataclass by name; fields that `option` did not declare are not among them."""
    hints = get_type_hints(declaring)
    found = {}
    for one in fields(declaring):
        if "option" in one.metadata:
            default = one.default_factory() if one.default_factory is not MISSING else one.default
            found[one.name] = DeclaredOption(one.name, hints[one.name], str(one.type), default, one.metadata["option"])
    return found


@cache
def _kinds(declaring: Any) -> dict[str, tuple[Kind, Any]]:
    """Return the kind and the default of each option."""
    return {name: (declared.kind, declared.default) for name, declared in options_of(declaring).items()}


def check_options(options: object) -> None:
    """Check the fields of a frozen dataclass of options, and make them plain Python values; call it in __post_init__.

    Raises UsageError, naming the option, for a value of a wrong type or out of range.
    """
    declaring: Any = type(options)
    for name, (kind, default) in _kinds(declaring).items():
        value = getattr(options, name)
        if value is not default:  # a request's options are nearly all defaults
            object.__setattr__(options, name, checked(name, value, kind))


def arguments_of(options: Any) -> dict[str, Any]:
    """Return the options of a dataclass instance as keyword arguments; fields that are no options are left out."""
    declaring: Any = type(options)
    return {name: getattr(options, name) for name in options_of(declaring)}


def unknown_option(name: str, known: Any) -> UsageError:
    """Build the error for an option that does not exist."""
    return UsageError(f"there is no option {short(name)}; there are {', '.join(sorted(known))}")

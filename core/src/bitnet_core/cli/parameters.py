"""Expand dataclasses of options into the parameters of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import wraps
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from bitnet_core.options.fields import DeclaredOption, options_of


@dataclass(frozen=True, slots=True)
class Given:
    """A marker of a dict parameter that receives the options of a dataclass that the command line has.

    default: description of the default of the others.
    """

    declaring: type
    default: str


@dataclass(frozen=True, slots=True)
class Field:
    """A marker of a parameter that is the option with its name in a dataclass."""

    declaring: type


_METAVARS = {int: "N", float: "X", str: "TEXT"}


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with one parameter for each option of its dataclass parameters, as Typer reads them.

    A parameter annotated with a dataclass receives an instance of it; see also `Given` and `Field`.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    collect: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
    for parameter in inspect.signature(command).parameters.values():
        annotation = hints[parameter.name]
        marker = next((extra for extra in get_args(annotation)[1:] if isinstance(extra, Given | Field)), None)
        if isinstance(marker, Field):
            declared = options_of(marker.declaring)[parameter.name]
            parameters.append(_parameter(declared, None))
            collect[parameter.name] = _collector([declared], lambda values: next(iter(values.values()), None))
        elif marker or is_dataclass(annotation):
            shown = [one for one in options_of(marker.declaring if marker else annotation).values() if one.flags]
            parameters += [_parameter(one, marker) for one in shown]
            collect[parameter.name] = _collector(shown, dict if marker else lambda values, a=annotation: a(**values))
        else:
            parameters.append(parameter.replace(annotation=annotation, kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**values: Any) -> None:
        taken = {name: value for name, value in values.items() if name in hints and name not in collect}
        command(**taken, **{name: build(values) for name, build in collect.items()})

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # Typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _collector(options: list[DeclaredOption], build: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that builds a parameter of the command from the values of its options."""

    def collect(values: Mapping[str, Any]) -> Any:
        given = {one.name: _converted(one, values[one.name]) for one in options if values[one.name] is not None}
        return build(given)

    return collect


def _converted(one: DeclaredOption, value: Any) -> Any:
    """Return an option's value from that of the command line. Raises UsageError if the option's parser refuses it."""
    if one.option.parse is not None:
        return one.option.parse(value)
    if one.choices:
        return next(choice for choice in one.choices if str(choice) == str(value))
    return tuple(value) if isinstance(value, list) else value


def _parameter(one: DeclaredOption, given: Given | None) -> inspect.Parameter:
    option, kind = one.option, one.plain
    if option.parse is not None:
        kind = str
    elif one.choices:
        kind = Literal[tuple(map(str, one.choices))]
    elif get_origin(kind) is tuple:
        kind = list[get_args(kind)[0]]  # type: ignore[misc]  # as above
    default = None if given or option.parse or isinstance(one.default, tuple) else one.default
    if default is not None and one.choices:
        default = str(default)
    words = option.help
    if given and "Default:" not in words:
        words += f" Default: {given.default}." if option.gguf else f" Default: {one.default:g}."
    info = typer.Option(
        *one.flags,
        metavar=option.metavar or _METAVARS.get(kind),
        rich_help_panel=option.group or None,
        help=words,
        min=option.at_least,
        max=option.at_most,
    )
    annotation = Annotated[kind if default is not None else kind | None, info]  # type: ignore[valid-type]  # as above
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

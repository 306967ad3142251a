"""Check a value against a type annotation, and return it as plain Python: a numpy scalar becomes an int or a float."""

from __future__ import annotations

import collections.abc
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from numbers import Integral, Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from bitnet_hal.errors import UsageError, short


class Kind(NamedTuple):
    """A type in words, and a conversion that raises if a value is not of this type."""

    words: str
    convert: Callable[[Any], Any]


def checked(name: str, value: object, kind: Kind) -> Any:
    """Return the value as the kind's plain Python type. Raises UsageError, naming the argument, if it does not fit."""
    try:
        return kind.convert(value)
    except Exception:  # noqa: BLE001 - an object that fails when it is inspected does not fit either
        raise UsageError(f"{name} must be {kind.words}, not {short(value)}") from None


@cache
def kind_of(annotation: Any) -> Kind:
    """Return the kind of a resolved annotation: a scalar, Literal, union, list, mapping, function or class."""
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _union([kind_of(part) for part in parts if part is not type(None)], type(None) in parts)
    if origin is Literal:
        return _literal(parts)
    if origin is collections.abc.Mapping:
        return _mapping(*parts)
    if origin is collections.abc.Callable:
        return Kind("a function", _function)
    if origin in (tuple, collections.abc.Iterable, collections.abc.Sequence):
        return _list(kind_of(parts[0]), tuple if origin is tuple else list)
    return Kind(f"a {annotation.__name__}", lambda value: _instance(value, annotation))


def _union(kinds: list[Kind], optional: bool) -> Kind:
    def convert(value: Any) -> Any:
        if value is None and optional:
            return None
        for kind in kinds[:-1]:
            try:
                return kind.convert(value)
            except (TypeError, ValueError):
                continue
        return kinds[-1].convert(value)

    return Kind(" or ".join(kind.words for kind in kinds), convert)


def _literal(choices: tuple[Any, ...]) -> Kind:
    by_value = {choice: choice for choice in choices}

    def convert(value: Any) -> Any:
        if isinstance(value, bool):
            raise TypeError(value)
        return by_value[value]

    return Kind(f"one of {', '.join(map(str, choices))}", convert)


def _list(item: Kind, build: Callable[[Iterable[Any]], Any]) -> Kind:
    """Accept a value that can be iterated over twice, but no text: its parts are texts too."""

    def convert(value: Any) -> Any:
        if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping) or iter(value) is value:
            raise TypeError(value)
        return build([item.convert(part) for part in value])

    return Kind(f"a list of {_plural(item)}", convert)


def _mapping(key: Any, value: Any) -> Kind:
    keys, values = kind_of(key), kind_of(value)

    def convert(mapping: Any) -> Any:
        if not isinstance(mapping, Mapping):
            raise TypeError(mapping)
        return {keys.convert(k): values.convert(v) for k, v in mapping.items()}

    words = "a mapping" if value is Any else f"a mapping of {_plural(keys)} to {_plural(values)}"
    return Kind(words, convert)


def _plural(kind: Kind) -> str:
    return f"{kind.words.removeprefix('a ')}s"


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(value)
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(value)
    return int(value)


def _flag(value: Any) -> bool:
    numpy_bool = getattr(getattr(value, "dtype", None), "kind", "") == "b" and value.ndim == 0
    if not (isinstance(value, bool) or numpy_bool):
        raise TypeError(value)
    return bool(value)


def _path(value: Any) -> Path:
    path = fspath(value)
    if "\0" in path:  # which no system allows in a name
        raise ValueError(value)
    return Path(path)


def _function(value: Any) -> Any:
    if not callable(value):
        raise TypeError(value)
    return value


def _instance(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(value)
    return value


NUMBER = Kind("a number", _number)
WHOLE = Kind("a whole number", _whole)
TEXT = Kind("a text", lambda value: _instance(value, str))
TOKENS = Kind("a list of token ids", _list(WHOLE, list).convert)
PATH = Kind("a path", _path)
_SCALARS: dict[Any, Kind] = {
    int: WHOLE,
    float: NUMBER,
    bool: Kind("True or False", _flag),
    str: TEXT,
    Path: PATH,
    PathLike: PATH,
    Any: Kind("any value", lambda value: value),
}

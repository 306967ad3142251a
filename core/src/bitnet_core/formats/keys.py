"""Typed, bounded access to the key-values of a model: GGUF metadata or config.json."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from bitnet_hal.errors import short as short  # re-exported for the readers of files

from bitnet_core.errors import ModelError
from bitnet_core.string_table import StringTable

MAX_COUNT = 1 << 24  # far above any transformer's dimension; products of two stay below 2^63
MAX_LAYERS = 1 << 10
MAX_REAL = 1e30  # fits f32 and is far above any frequency base or factor


class MetadataReader:
    """Checked access to the values of a mapping whose names start with `prefix`. Each method raises ModelError for a
    value of the wrong type or range."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self._path, self._values, self._prefix = path, values, prefix

    def _bad(self, key: str, what: str) -> ModelError:
        return ModelError(f"{self._path}: the key {key!r} {what}")

    def _value(self, name: str, default: Any) -> tuple[str, Any]:
        key = self._prefix + name
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self._bad(key, "is missing")
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = value[0].item()  # some writers store one value per layer
        return key, value

    def count(self, name: str, default: int | None = None, limit: int = MAX_COUNT) -> int:
        """Return a positive integer."""
        return self._whole(name, default, 1, limit)

    def count_or_none(self, name: str, limit: int = MAX_COUNT) -> int:
        """Return a count that writers state as 0, or leave out, if there are none."""
        return self._whole(name, 0, 0, limit)

    def _whole(self, name: str, default: int | None, least: int, limit: int) -> int:
        key, value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= limit:
            raise self._bad(key, f"is {short(value)}, not a whole number from {least} to {limit}")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """Return a positive finite number."""
        key, value = self._value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self._bad(key, f"is {short(value)}, not a positive number")
        if value > MAX_REAL:
            raise self._bad(key, f"is {short(value)}, larger than {MAX_REAL:g}")
        return float(value)

    def text(self, name: str, default: str) -> str:
        """Return a string value."""
        key, value = self._value(name, default)
        if not isinstance(value, str):
            raise self._bad(key, f"is {short(value)}, not a string")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean value."""
        key, value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._bad(key, f"is {short(value)}, not true or false")
        return value

    def names(self, name: str) -> list[str]:
        """Return a list of strings; empty if absent."""
        key, value = self._value(name, [])
        if not isinstance(value, list | StringTable) or not all(isinstance(item, str) for item in value):
            raise self._bad(key, f"is {short(value)}, not a list of names")
        return list(value)

    def numbers(self, name: str) -> list[int]:
        """Return a list of whole numbers; empty if absent."""
        value = self._values.get(self._prefix + name, np.empty(0, np.int32))
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise self._bad(self._prefix + name, f"is {short(value)}, not a list of whole numbers")
        return [int(number) for number in value]

    def flags(self, name: str, count: int) -> list[bool]:
        """Return `count` boolean values."""
        key = self._prefix + name
        value = self._values.get(key)
        if not isinstance(value, np.ndarray) or value.dtype != np.bool_ or len(value) != count:
            raise self._bad(key, f"is {short(value)}, not a list of {count} values that are true or false")
        return [bool(one) for one in value]

    def group(self, name: str) -> dict[str, Any]:
        """Return a nested mapping; empty if absent."""
        key, value = self._value(name, {})
        if not isinstance(value, dict):
            raise self._bad(key, f"is {short(value)}, not a group of keys")
        return value

    def names_below(self, group: str) -> set[str]:
        """Return the rest of the name of every key that starts with the prefix and `group`."""
        start = self._prefix + group
        return {key.removeprefix(start) for key in self._values if key.startswith(start)}

    def is_one_of(self, name: str, values: Collection[Any]) -> bool:
        """Return whether the value, or each element of a list, equals one of `values`."""
        value = self._value(name, None)[1]
        found = value.reshape(-1).tolist() if isinstance(value, np.ndarray) else [value]
        return all(isinstance(one, int | float) and one in values for one in found)

    def has(self, name: str) -> bool:
        return self._values.get(self._prefix + name) is not None

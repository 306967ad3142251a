"""Tunings as data: rows for each kernel, of which a launch takes the first that suits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bitnet_hal.device import Tuning
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.tuning.query import TuningQuery


@dataclass(frozen=True, slots=True)
class TuningRow:
    """A tuning for launches whose sizes (`TuningQuery.size`) are at most `max` and multiples of `multiple_of`, on
    devices with groups of its GROUP work-items. Its constants are numbers, sizes by name, or [a number, a size],
    multiplied. unsupported: why such launches are not served, in place of a tuning."""

    tile: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""
    private: Mapping[str, Any] = field(default_factory=dict)
    max: Mapping[str, int] = field(default_factory=dict)
    multiple_of: Mapping[str, int] = field(default_factory=dict)
    unsupported: str = ""

    def suits(self, query: TuningQuery, max_group: int) -> bool:
        """Whether a launch may take it."""
        few = all(query.size(name) <= limit for name, limit in self.max.items())
        whole = all(query.size(name) % factor == 0 for name, factor in self.multiple_of.items())
        return few and whole and _number(self.private.get("GROUP", 1), query.size) <= max_group

    def tuning(self, size: Callable[[str], int]) -> Tuning:
        """Of a launch, whose sizes have their names."""
        tile, private = (
            {name: _number(value, size) for name, value in constants.items()} for constants in (self.tile, self.private)
        )
        return Tuning(tile, self.variant, private)


def _number(value: int | str | list[Any], size: Callable[[str], int]) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return size(value)
    times, name = value
    return int(times) * size(name)


class TuningTable:
    """content: of a TOML file: a list of tables for each kernel, with fields of TuningRow, all of which may be left
    out."""

    def __init__(self, content: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self.rows = {kernel: tuple(TuningRow(**row) for row in rows) for kernel, rows in content.items()}

    def tune(self, query: TuningQuery, max_group: int = 1 << 16) -> Tuning:
        """For one launch on a device with groups of at most `max_group`; UnsupportedError where no row suits it."""
        row = next((row for row in self.rows.get(query.spec.name, ()) if row.suits(query, max_group)), None)
        if row and row.unsupported:
            raise query.unsupported(row.unsupported)
        if row:
            return row.tuning(query.size)
        sizes = ", ".join(f"{name} {value}" for name, value in query.params.items())
        message = f"there is no {query.spec.name} for {sizes or 'any size'}"
        raise UnsupportedError(message, backend=query.info.backend, operation="tuning")

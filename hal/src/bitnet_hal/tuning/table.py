"""Tunings as data: a launch uses the first matching row of its kernel's table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bitnet_hal.device import Tuning
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.tuning.query import TuningQuery


@dataclass(frozen=True, slots=True)
class TuningRow:
    """A tuning and the launches that it matches.

    max, multiple_of: limits and divisors of sizes (`TuningQuery.size`) by name. The private constant GROUP must not
    exceed the device's maximum. Values of tile and private are numbers, names of sizes, or [factor, name] products.
    unsupported: instead of a tuning, the reason why such launches are not supported.
    """

    tile: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""
    private: Mapping[str, Any] = field(default_factory=dict)
    max: Mapping[str, int] = field(default_factory=dict)
    multiple_of: Mapping[str, int] = field(default_factory=dict)
    unsupported: str = ""

    def matches(self, query: TuningQuery, max_group: int) -> bool:
        """Return whether the row applies to a launch."""
        within = all(query.size(name) <= limit for name, limit in self.max.items())
        divisible = all(query.size(name) % factor == 0 for name, factor in self.multiple_of.items())
        return within and divisible and _number(self.private.get("GROUP", 1), query.size) <= max_group

    def tuning(self, size: Callable[[str], int]) -> Tuning:
        """Return the tuning with sizes by name filled in."""
        tile = {name: _number(value, size) for name, value in self.tile.items()}
        private = {name: _number(value, size) for name, value in self.private.items()}
        return Tuning(tile, self.variant, private)


def _number(value: int | str | list[Any], size: Callable[[str], int]) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return size(value)
    factor, name = value
    return int(factor) * size(name)


class TuningTable:
    """A table of tunings. content: a parsed TOML file, with a list of rows (fields of TuningRow) per kernel."""

    def __init__(self, content: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self.rows = {kernel: tuple(TuningRow(**row) for row in rows) for kernel, rows in content.items()}

    def all(self, query: TuningQuery) -> list[Tuning]:
        """Return the tunings of all rows that match a launch, on a device with groups of any size."""
        rows = self.rows.get(query.spec.name, ())
        return [row.tuning(query.size) for row in rows if row.matches(query, 1 << 16) and not row.unsupported]

    def tune(self, query: TuningQuery, max_group: int = 1 << 16) -> Tuning:
        """Return the tuning of a launch on a device with at most `max_group` work-items per group.

        Raises UnsupportedError if no row matches.
        """
        row = next((row for row in self.rows.get(query.spec.name, ()) if row.matches(query, max_group)), None)
        if row and row.unsupported:
            raise query.unsupported(row.unsupported)
        if row:
            return row.tuning(query.size)
        sizes = ", ".join(f"{name} {value}" for name, value in query.params.items())
        message = f"there is no {query.spec.name} for {sizes or 'any size'}"
        raise UnsupportedError(message, backend=query.info.backend, operation="tuning")

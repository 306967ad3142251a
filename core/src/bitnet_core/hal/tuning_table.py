"""Tunings as data: a TOML file with the rows of each kernel, of which a launch takes the first that suits it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bitnet_core.errors import UnsupportedError
from bitnet_core.hal.device import Tuning
from bitnet_core.hal.wanted import Wanted


@dataclass(frozen=True, slots=True)
class Row:
    """A tuning, whose constants are numbers or the names of sizes (`Wanted.size`), for launches whose sizes are at most
    `most` and multiples of `multiple`, on devices whose groups may have its GROUP work-items."""

    tile: Mapping[str, int | str] = field(default_factory=dict)
    variant: str = ""
    private: Mapping[str, int | str] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    multiple: Mapping[str, int] = field(default_factory=dict)

    def suits(self, wanted: Wanted, max_group: int) -> bool:
        """Whether a launch may take it."""
        few = all(wanted.size(name) <= limit for name, limit in self.most.items())
        whole = all(wanted.size(name) % factor == 0 for name, factor in self.multiple.items())
        return few and whole and int(self.private.get("GROUP", 1)) <= max_group

    def tuning(self, size: Callable[[str], int]) -> Tuning:
        """Of a launch, whose sizes have their names."""
        tile, private = (
            {name: size(value) if isinstance(value, str) else value for name, value in constants.items()}
            for constants in (self.tile, self.private)
        )
        return Tuning(tile, self.variant, private)


class TuningTable:
    """The rows of a file: a list of tables for each kernel, with the fields of Row, all of which may be left out."""

    def __init__(self, file: Path) -> None:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        self.rows = {kernel: tuple(Row(**row) for row in rows) for kernel, rows in content.items()}

    def tune(self, wanted: Wanted, max_group: int = 1 << 16) -> Tuning:
        """For one launch on a device with groups of at most `max_group`; UnsupportedError where no row suits it."""
        for row in self.rows.get(wanted.spec.name, ()):
            if row.suits(wanted, max_group):
                return row.tuning(wanted.size)
        sizes = ", ".join(f"{name} {value}" for name, value in wanted.params.items())
        message = f"there is no {wanted.spec.name} for {sizes or 'any size'}"
        raise UnsupportedError(message, backend=wanted.info.backend, operation="tuning")

"""Tunings as data: a TOML file with the rows of each kernel, of which a launch takes the first that suits it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bitnet_core.errors import UnsupportedError
from bitnet_core.hal.device import Tuning


@dataclass(frozen=True, slots=True)
class Row:
    """A tuning, for launches with parameters of at most `most` that are multiples of `multiple`, on devices whose
    groups may have its GROUP work-items."""

    tuning: Tuning
    most: Mapping[str, int]
    multiple: Mapping[str, int]

    def suits(self, params: Mapping[str, int | float], max_group: int) -> bool:
        """Whether a launch may take it."""
        few = all(params[name] <= limit for name, limit in self.most.items())
        whole = all(params[name] % factor == 0 for name, factor in self.multiple.items())
        return few and whole and self.tuning.private.get("GROUP", 1) <= max_group


class TuningTable:
    """The rows of a file: a list of tables for each kernel, with `tile`, `variant`, `private` (as in Tuning), `most`
    and `multiple` (as in Row), all of which may be left out."""

    def __init__(self, file: Path, backend: str) -> None:
        self._backend = backend
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        self.rows = {kernel: tuple(_row(**row) for row in rows) for kernel, rows in content.items()}

    def tune(self, kernel: str, params: Mapping[str, int | float], max_group: int = 1 << 16) -> Tuning:
        """For one launch on a device with groups of at most `max_group`; UnsupportedError where no row suits it."""
        for row in self.rows.get(kernel, ()):
            if row.suits(params, max_group):
                return row.tuning
        sizes = ", ".join(f"{name} {value}" for name, value in params.items())
        raise UnsupportedError(
            f"there is no {kernel} for {sizes or 'any size'}", backend=self._backend, operation="tuning"
        )


def _row(
    tile: Mapping[str, int] | None = None,
    variant: str = "",
    private: Mapping[str, int] | None = None,
    most: Mapping[str, int] | None = None,
    multiple: Mapping[str, int] | None = None,
) -> Row:
    return Row(Tuning(tile or {}, variant, private or {}), most or {}, multiple or {})

"""Known model families, and the short names of their published models, from families.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PublishedFamily:
    """A published model family.

    sizes: parameters. forms: the forms in which it is published. does: bitnet's support. tested: the tests of it.
    download: size of the files, if known. models: references by short name. use: the command of bitnet that uses them.
    """

    name: str
    publisher: str
    sizes: str
    licence: str
    forms: str
    does: str
    runs: bool
    tested: str
    download: str = ""
    models: Mapping[str, str] = field(default_factory=dict)
    use: str = "run"

    @property
    def command(self) -> str:
        """The command that fetches and runs a model; with a placeholder for your own file or folder if no repository
        has a short name."""
        if not self.runs:
            return ""
        return f"bitnet {self.use} -m {next(iter(self.models), 'FILE_OR_FOLDER')}"


@cache
def families() -> tuple[PublishedFamily, ...]:
    """Return the families in the order of docs/models.md."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(PublishedFamily(**row) for row in tomllib.loads(text)["family"])


@cache
def short_names() -> Mapping[str, str]:
    """Return the reference of each short name."""
    return {name: reference for family in families() for name, reference in family.models.items()}

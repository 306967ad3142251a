"""Families of models that are known, and short names of those whose repositories are: families.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Family:
    """sizes: parameters; forms: how its publisher and others store it; does: how bitnet treats them; download: the size
    of the files, where it is known; models: references by short names."""

    name: str
    publisher: str
    sizes: str
    licence: str
    forms: str
    does: str
    runs: bool
    download: str = ""
    models: Mapping[str, str] = field(default_factory=dict)


@cache
def families() -> tuple[Family, ...]:
    """As docs/models.md lists them."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(Family(**row) for row in tomllib.loads(text)["family"])


@cache
def short_names() -> Mapping[str, str]:
    """References by the names that stand for them."""
    return {name: reference for family in families() for name, reference in family.models.items()}

"""Every requirement of every project says from which version on it holds; `nox -s minimums` tests with just those."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PROJECTS = [
    ROOT / "hal",
    ROOT / "core",
    *sorted(path.parent for path in ROOT.glob("*/*/pyproject.toml") if path.parts[-3] != "build"),
]


def table(project: Path) -> dict[str, Any]:
    with (project / "pyproject.toml").open("rb") as file:
        read: dict[str, Any] = tomllib.load(file)["project"]
    return read


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_requirements_have_a_lower_bound_and_are_never_pinned(project: Path) -> None:
    read = table(project)
    wanted = [
        *read.get("dependencies", ()),
        *(one for extra in read.get("optional-dependencies", {}).values() for one in extra),
    ]
    ours = [one for one in wanted if one.startswith("bitnet-")]
    assert [one for one in wanted if one not in ours and not re.match(r"[\w.-]+(\[\w+\])?>=\d", one)] == []
    assert [one for one in wanted if "==" in one.partition(";")[0]] == []


def test_projects_agree_on_their_bounds() -> None:
    """They are installed together, and the lowest versions are tested together."""
    bounds: dict[str, set[str]] = {}
    for project in PROJECTS:
        for one in table(project).get("dependencies", ()):
            name, found, version = one.partition(">=")
            if found and not name.startswith("bitnet-"):
                bounds.setdefault(name, set()).add(version.partition(",")[0])
    assert {name: sorted(versions) for name, versions in bounds.items() if len(versions) > 1} == {}

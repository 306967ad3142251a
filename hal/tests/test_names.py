"""A class of hal, core and the server has a name of its own there: two things never share one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("hal/src", "core/src", "plugins/bitnet-server/src")


def classes() -> dict[str, list[str]]:
    """Return the modules that define each class."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in (module for folder in FOLDERS for module in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(module.relative_to(ROOT)))
    return places


def test_no_two_classes_share_a_name() -> None:
    places = classes()
    assert len(places) > 100
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}

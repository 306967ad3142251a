"""The shape of the code: no folder imports one above it (the table in docs/index.md), no function is long."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = {"bitnet_core": "| folder | owns |", "bitnet_hal": "| folder of bitnet-hal | owns |"}
"""Each package and the head of its table."""


def source(package: str) -> Path:
    return ROOT / package.removeprefix("bitnet_") / "src" / package


def rows(page: str, head: str) -> list[list[str]]:
    """The folders of each row of the table, top first."""
    table = page.partition(head)[2].partition("\n\n")[0]
    return [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines() if line.startswith("| `")]


def imported(path: Path, package: str) -> Iterator[str]:
    """Folders and modules of its package that a file imports, but not those it needs for its types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    branches = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    for branch in [node for node in branches if "TYPE_CHECKING" in ast.dump(node.test)]:
        branch.body = [ast.Pass()]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package):
            _, _, rest = (node.module or "").partition(".")
            yield rest.split(".")[0] if rest else node.names[0].name


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folder_imports_one_above_it(package: str) -> None:
    order = rows((ROOT / "docs" / "index.md").read_text(encoding="utf-8"), PACKAGES[package])
    tree = source(package)
    floor = {name: number for number, names in enumerate(order) for name in names}
    folders = {path.name for path in tree.iterdir() if (path / "__init__.py").exists()}
    assert folders - floor.keys() <= {"scaffold"}, "the table of docs/index.md names every folder that imports others"
    wrong = []
    for path in sorted(tree.rglob("*.py")):
        own = path.relative_to(tree).with_suffix("").parts[0]
        if own in floor:
            above = [name for name in imported(path, package) if floor.get(name, len(order)) < floor[own]]
            wrong += [f"{path.relative_to(tree)} imports {name}" for name in above]
    assert wrong == []


def test_no_function_is_longer_than_a_screen() -> None:
    sources = [*map(source, PACKAGES), *(ROOT / "plugins").glob("*/src"), *(ROOT / "integrations").glob("*/src")]
    paths = sorted(path for source in sources for path in source.rglob("*.py"))
    assert len(paths) > 200
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in paths
        if "template" not in path.parts  # its words are filled in first
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 50
    ]
    assert long == []

"""The table of which backend offers which optional kernel, as the sources of its description say."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from bitnet_hal.kernels.catalogue import CATALOGUE, DELTA_KERNELS, EXPERT_KERNELS, ROTATED_KERNELS
from bitnet_hal.kernels.describe import table
from bitnet_hal.reference.describe import numpy_info

PLUGINS = Path(__file__).parents[1] / "plugins"
NAMES = [spec.name for spec in CATALOGUE.values() if not spec.base]
SETS = {"DELTA_KERNELS": DELTA_KERNELS, "EXPERT_KERNELS": EXPERT_KERNELS, "ROTATED_KERNELS": ROTATED_KERNELS}
EVERY, SOME = "all", "some"
"""Devices of a backend."""


def optional() -> str:
    """A row for each optional kernel, a column for each backend."""
    found = {"numpy": dict.fromkeys(numpy_info().kernels, EVERY)}
    for path in sorted(PLUGINS.glob("bitnet-*/src/*/describe.py")):
        found[path.parent.name.removeprefix("bitnet_").replace("levelzero", "level-zero")] = declared(path)
    rows = [(f"`{name}`", *(offers.get(name, "") for offers in found.values())) for name in NAMES]
    return table(("kernel", *(f"`{backend}`" for backend in found)), *rows)


def declared(path: Path) -> dict[str, str]:
    """Optional kernels of a plugin's describe.py and of the tables beside it, by which of its devices have them."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign):
            every = any(isinstance(target, ast.Name) and target.id == "OPTIONAL" for target in node.targets)
            found |= dict.fromkeys(kernels(node.value), EVERY if every else SOME)
        elif isinstance(node, ast.keyword) and node.arg == "kernels":
            found |= dict.fromkeys(kernels(node.value), EVERY)
    for content in (tomllib.loads(one.read_text(encoding="utf-8")) for one in path.parent.glob("*.toml")):
        found |= dict.fromkeys(content.get("fused", ()), SOME) | dict.fromkeys(content.get("everywhere", ()), EVERY)
        found |= {name: SOME if needs else EVERY for name, needs in content.get("kernels", {}).items()}
    return found


def kernels(value: ast.AST) -> set[str]:
    """Optional kernels that an expression names, one by one or as a set of core's."""
    parts = list(ast.walk(value))
    words = {part.value for part in parts if isinstance(part, ast.Constant)} & set(NAMES)
    return words.union(*(SETS.get(part.id, ()) for part in parts if isinstance(part, ast.Name)))

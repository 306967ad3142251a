"""Plugins import from one place: `bitnet_hal.plugin` for all names that it has, the defining module for the others."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import bitnet_hal.plugin
import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for pattern in ("plugins/*/src", "examples/*/src", "core/src/bitnet_core/scaffold/template/src")
    for folder in ROOT.glob(pattern)
    for path in folder.rglob("*.py")
    if path.name != "plugin.py"  # the light entry point imports bitnet_hal.driver.lazy at most
)


@pytest.mark.skipif(not SOURCES, reason="runs in a checkout of the repository")
def test_plugins_import_from_the_front_door() -> None:
    around = []
    for path in SOURCES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bitnet_hal."):
                names = {alias.name for alias in node.names} & set(bitnet_hal.plugin.__all__)
                if names and node.module != "bitnet_hal.plugin":
                    around.append(f"{path.relative_to(ROOT)}:{node.lineno}: {', '.join(sorted(names))}")
    assert not around, f"import these names from bitnet_hal.plugin: {around}"


def test_the_front_door_is_light() -> None:
    """Importing it loads no numpy, no driver's binding and no registry of plugins."""
    code = "import sys, bitnet_hal.plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "cffi", "pluggy", "importlib_metadata", "bitnet_hal.discovery.registry"}
    assert not heavy & set(done.stdout.split())

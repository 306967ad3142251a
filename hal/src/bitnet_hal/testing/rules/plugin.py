"""Rules about the plugin module: cheap import, correct name and version."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from typing import ClassVar

import pytest

from bitnet_hal.device import Backend
from bitnet_hal.discovery.known import KNOWN
from bitnet_hal.version import API_VERSION

DRIVERS = tuple(library for backend in KNOWN.values() for library in backend.libraries)
"""Parts of the names of driver libraries that a plugin must not load before `Backend.devices` is called."""
HEAVY = ("torch", "numba", *(module for backend in KNOWN.values() for module in backend.modules))
"""Modules that a plugin must not import before `Backend.devices` is called; a test class may add more."""

_PROBE = """
import importlib, json, sys
from pathlib import Path
before = set(sys.modules)
backend = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()
maps = Path("/proc/self/maps")
print(json.dumps([sorted(set(sys.modules) - before), maps.read_text() if maps.exists() else ""]))
"""


class PluginRules:
    """Rules that need no device."""

    heavy_modules: ClassVar[tuple[str, ...]] = ()
    """Further modules that importing the plugin must not load."""

    def test_the_name_is_the_entry_points(self, backend: Backend, entry_point: tuple[str, str] | None) -> None:
        """Backend.name must equal the entry point's name."""
        if entry_point is None:
            pytest.skip("the backend was given as an object, not by its entry point")
        assert backend.name == entry_point[0]

    def test_the_version_is_accepted(self, backend: Backend) -> None:
        """The contract's major version must equal bitnet-hal's, and its minor version must not be newer."""
        major, minor = backend.api
        assert (type(major), type(minor)) == (int, int)
        assert major == API_VERSION[0], f"the plugin was written for HAL {major}, bitnet-hal has {API_VERSION[0]}"
        assert minor <= API_VERSION[1], f"the plugin needs HAL {major}.{minor}, bitnet-hal has {API_VERSION}"

    def test_the_rank_is_a_number(self, backend: Backend) -> None:
        """The rank under `auto`, if the backend has one, must be an int."""
        assert type(getattr(backend, "rank", 0)) is int, "Backend.rank must be an int, if the backend has one"

    def test_the_version_is_a_literal(self, backend: Backend) -> None:
        """The version must be a literal: one imported from bitnet-hal would always match and prove nothing."""
        module = type(backend).__module__
        tree = ast.parse(inspect.getsource(sys.modules[module]))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert "API_VERSION" not in names, f"{module} imports the HAL version; write it as a literal"

    def test_importing_loads_no_driver(self, backend: Backend, entry_point: tuple[str, str] | None) -> None:
        """Importing the plugin and creating its backend must load neither drivers nor heavy modules."""
        module, factory = (entry_point[1], "bitnet_backend") if entry_point else _home(backend)
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        run = subprocess.run(
            [sys.executable, "-c", _PROBE, module, factory],
            env=paths,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert run.returncode == 0, f"importing {module} in a fresh process failed:\n{run.stderr}"
        modules, maps = json.loads(run.stdout)
        heavy = {name.split(".")[0] for name in modules} & {*HEAVY, *self.heavy_modules}
        assert not heavy, f"importing {module} also imports {', '.join(sorted(heavy))}"
        mapped = [name for name in DRIVERS if name in maps]
        assert not mapped, f"importing {module} loads the driver ({', '.join(mapped)})"


def _home(backend: Backend) -> tuple[str, str]:
    """Return the module and class name of a backend given as an object."""
    return type(backend).__module__, type(backend).__qualname__

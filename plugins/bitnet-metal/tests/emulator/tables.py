"""The tables of the real framework: pyobjc's macOS wheel, downloaded and read, not installed."""

from __future__ import annotations

import re
import subprocess
import sys
import types
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WHEEL = "pyobjc-framework-Metal==12.2.2"


@dataclass(frozen=True)
class Tables:
    """selectors: pyobjc's metadata by class (NSObject stands for every protocol) and selector; values: enumerators."""

    selectors: dict[tuple[str, str], dict[str, Any]]
    values: dict[str, int]


def download(folder: Path) -> Path:
    """Tables as one file, from PyPI; kept in the folder."""
    kept = folder / "_metadata.py"
    if not kept.exists():
        options = [
            "--no-deps",
            "--only-binary=:all:",
            "--platform",
            "macosx_11_0_universal2",
            "--python-version",
            "3.11",
        ]
        command = [sys.executable, "-m", "pip", "download", "-q", *options, "-d", str(folder), WHEEL]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            kept.write_bytes(wheel.read("Metal/_metadata.py"))
    return kept


def read(metadata: Path) -> Tables:
    """Run pyobjc's file with an `objc` that takes notes."""
    selectors: dict[tuple[str, str], dict[str, Any]] = {}

    class Objc(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name == "registerMetaDataForSelector":
                return lambda kind, selector, about: selectors.update({(kind.decode(), selector.decode()): about})
            return lambda *_, **__: None

    before = sys.modules.get("objc")
    sys.modules["objc"] = Objc("objc")
    try:
        names: dict[str, Any] = {}
        exec(compile(metadata.read_text(), str(metadata), "exec"), names)
    finally:
        del sys.modules["objc"]
        if before is not None:
            sys.modules["objc"] = before
    values = {name: int(value) for name, value in re.findall(r"\$(\w+)@(-?\d+)", names["enums"])}
    return Tables(selectors, values)

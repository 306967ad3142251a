"""Kernel sources as one string, for run-time compilers without a file system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bitnet_hal.errors import UnsupportedError


def source_text(folders: Sequence[Path], name: str, macros: Mapping[str, int], *, backend: str) -> str:
    """Return the source `name` with `#define`s of the macros in front and each included file inserted once.

    folders: searched in this order. Raises UnsupportedError if a file is missing.
    """
    defines = "".join(f"#define {macro} {value}\n" for macro, value in sorted(macros.items()))
    return defines + with_includes(folders, name, backend=backend)


def with_includes(folders: Sequence[Path], name: str, *, backend: str) -> str:
    """Return the source `name` with its includes, for languages without a preprocessor. Arguments as above."""
    return _with_includes(folders, name, set(), backend)


def _with_includes(folders: Sequence[Path], name: str, seen: set[str], backend: str) -> str:
    if name in seen:
        return ""
    seen.add(name)
    path = next((folder / name for folder in folders if (folder / name).exists()), None)
    if path is None:
        raise UnsupportedError(f"there is no kernel source {name}", backend=backend, operation="compile")
    return "".join(
        _with_includes(folders, line.split('"')[1], seen, backend) if line.startswith('#include "') else line + "\n"
        for line in path.read_text(encoding="utf-8").splitlines()
    )

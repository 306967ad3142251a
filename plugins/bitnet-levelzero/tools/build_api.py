"""Makes src/bitnet_levelzero/_ze_api.py of ze_api.h, so that nobody who uses it parses C: `python build_api.py`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import cffi

HEADER = Path(__file__).with_name("ze_api.h")
MODULE = Path(__file__).parents[1] / "src" / "bitnet_levelzero" / "_ze_api.py"
HEAD = '''"""What tools/ze_api.h declares, as tools/build_api.py makes it."""

# mypy: ignore-errors
# ruff: noqa
# fmt: off
'''


def module() -> str:
    """Its text."""
    ffi = cffi.FFI()
    ffi.cdef(HEADER.read_text(encoding="utf-8"))
    ffi.set_source("bitnet_levelzero._ze_api", None)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.py"
        ffi.emit_python_code(str(made))
        return HEAD + made.read_text(encoding="utf-8")


if __name__ == "__main__":
    MODULE.write_text(module(), encoding="utf-8")

"""Tables in TOML files beside a plugin's modules."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def table(module: str, name: str) -> dict[str, Any]:
    """The file `name` beside a module, which says where it is by its `__file__`."""
    return tomllib.loads(Path(module).with_name(name).read_text(encoding="utf-8"))

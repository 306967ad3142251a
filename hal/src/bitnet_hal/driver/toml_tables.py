"""Loading of TOML files that lie beside a plugin's modules."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def table(module: str, name: str) -> dict[str, Any]:
    """Load the TOML file `name` that lies next to `module` (its `__file__`)."""
    return tomllib.loads(Path(module).with_name(name).read_text(encoding="utf-8"))

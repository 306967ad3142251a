"""The one place where Level Zero's results become exceptions."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from bitnet_core.errors import LaunchError
from bitnet_core.hal.failures import Details, Known, failure, known

BACKEND = "level-zero"
UNINITIALIZED = 0x78000001
TABLE = {int(result, 16): row for result, row in known(Path(__file__).with_name("errors.toml")).items()}


def check(result: int, operation: str, **details: Unpack[Details]) -> None:
    """Raise the exception of a result; 0 is success."""
    if result:
        kind, hint, name = TABLE.get(result, Known(LaunchError, "", "unnamed"))
        code = f"ZE_RESULT_{name} (0x{result:08x})"
        raise failure(kind or LaunchError, operation, backend=BACKEND, code=code, hint=hint, **details)

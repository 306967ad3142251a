"""The one place where a CUresult becomes an exception."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bitnet_core.errors import LaunchError
from bitnet_core.hal.failures import Known, failure, known

TABLE = {int(status): row for status, row in known(Path(__file__).with_name("errors.toml")).items()}


def check(
    result: tuple[Any, ...], operation: str, *, device: str = "", requested: int = 0, free: int = -1
) -> tuple[Any, ...]:
    """The values of a cuda.bindings call without its status; raises the status's error."""
    status = int(result[0])
    if status == 0:
        return result[1:]
    kind, hint, _ = TABLE.get(status, Known(None, ""))
    code, size = f"{getattr(result[0], 'name', 'CUresult')} ({status})", {"requested": requested, "free": free}
    raise failure(kind or LaunchError, operation, backend="cuda", code=code, device=device, hint=hint, **size)

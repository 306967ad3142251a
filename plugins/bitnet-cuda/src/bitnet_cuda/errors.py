"""The one place where a CUresult becomes an exception."""

from __future__ import annotations

from typing import Any, Unpack

from bitnet_hal.driver.status import StatusInfo, known
from bitnet_hal.errors import LaunchError
from bitnet_hal.plugin import ErrorDetails, failure

Result = tuple[Any, ...]  # a status, then the values of a call
TABLE = {int(status): row for status, row in known(__file__).items()}


def check(result: Result, operation: str, device: str = "", **details: Unpack[ErrorDetails]) -> Result:
    """The values of a cuda.bindings call without its status; raises the status's error."""
    status = int(result[0])
    if status == 0:
        return result[1:]
    kind, hint, _ = TABLE.get(status, StatusInfo(None, ""))
    code = f"{getattr(result[0], 'name', 'CUresult')} ({status})"
    raise failure(kind or LaunchError, operation, backend="cuda", code=code, device=device, hint=hint, **details)

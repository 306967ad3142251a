"""Exceptions for the status codes of the driver."""

from __future__ import annotations

from typing import Any, Unpack

from bitnet_hal.driver.status import StatusInfo, known
from bitnet_hal.errors import LaunchError
from bitnet_hal.plugin import ErrorDetails, failure

Result = tuple[Any, ...]
"""The result of a cuda.bindings call: its status, then its values."""
TABLE = {int(status): row for status, row in known(__file__).items()}


def check(result: Result, operation: str, device: str = "", **details: Unpack[ErrorDetails]) -> Result:
    """Return the values of a cuda.bindings call without its status. Raises the GpuError for a status that is not 0."""
    status = int(result[0])
    if status == 0:
        return result[1:]
    kind, hint, _ = TABLE.get(status, StatusInfo(None, ""))
    code = f"{getattr(result[0], 'name', 'CUresult')} ({status})"
    raise failure(kind or LaunchError, operation, backend="cuda", code=code, device=device, hint=hint, **details)

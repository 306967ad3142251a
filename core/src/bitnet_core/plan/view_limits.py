"""The maximum size of a view that a device can bind, and the rows of a matrix that fit in one view."""

from __future__ import annotations

from pathlib import Path

from bitnet_hal.device import DeviceInfo

from bitnet_core.errors import ModelError


def view_limit(info: DeviceInfo) -> int:
    """Return the maximum bytes of a view that a device can bind, 0 for no limit."""
    return min((limit for limit in (info.max_binding, info.max_allocation) if limit), default=0)


def rows_per_part(path: Path, limit: int, row_bytes: int, rows: int) -> int:
    """Return the rows of a matrix that fit in one view. Raises ModelError if none does."""
    if not limit:
        return rows
    if row_bytes > limit:
        raise ModelError(f"{path}: a matrix row of {row_bytes} bytes exceeds what the device can bind")
    return min(rows, limit // row_bytes)

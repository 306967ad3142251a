"""Native status codes and their mapping to errors of bitnet."""

from __future__ import annotations

from enum import IntEnum

from bitnet_hal.errors import DeviceLostError, GpuError, LaunchError, OutOfMemoryError


class Status(IntEnum):
    """Status codes of the driver; these three are examples."""

    SUCCESS = 0
    OUT_OF_MEMORY = 1
    DEVICE_LOST = 2


TABLE: dict[int, tuple[type[GpuError], str, str]] = {
    Status.OUT_OF_MEMORY: (OutOfMemoryError, "out of device memory", "Use a smaller model or context"),
    Status.DEVICE_LOST: (DeviceLostError, "the device is gone", "Check the system's log"),
}
"""Status -> (class, message, hint). Any other status is a LaunchError."""
_OTHER = (LaunchError, "the driver refused", "Update the driver")


def check(status: int, operation: str, *, requested: int = 0, free: int = -1) -> None:
    """Raise the error for a status code unless it is success. requested, free: bytes, for out-of-memory errors."""
    if status == Status.SUCCESS:
        return
    kind, message, hint = TABLE.get(status, _OTHER)
    code = f"{Status(status).name if status in set(Status) else 'unknown'} ({status})"
    raise kind(message, backend="newbackend", operation=operation, code=code, hint=hint, requested=requested, free=free)

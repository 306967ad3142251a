"""Opening of a plugin's device: within a time limit, and with the plugin named in errors."""

from __future__ import annotations

from contextlib import suppress
from threading import Event

from bitnet_hal.device import Backend, Device, DeviceInfo
from bitnet_hal.discovery.known import REPORT
from bitnet_hal.driver.status import HINTS
from bitnet_hal.errors import BackendIncompatibleError, GpuError, GpuTimeoutError
from bitnet_hal.guard import guard, sound
from bitnet_hal.isolation import bounded, describe_error

OPEN_SECONDS = 60.0
"""Seconds that opening a device may take: a driver of many GPUs, or one that compiles when it starts, needs several."""


class Opener:
    """An opener of devices that remembers the backends whose last call has not returned."""

    def __init__(self) -> None:
        self._hanging: dict[str, Event] = {}  # by backend: set when its overdue call of `open` returns

    def open(self, backend: Backend, info: DeviceInfo, origin: tuple[str, str]) -> Device:
        """Open a listed device of a backend. origin: distribution and version of the plugin.

        Raises a GpuError for any exception or wrong result of the plugin, and if it takes more than OPEN_SECONDS; a
        UsageError (for an invalid variable, say) passes unchanged.
        """

        def wrong(operation: str, what: str) -> BackendIncompatibleError:
            return _wrong(info, origin, operation, what)

        try:
            device = self._opened(backend, info)
            usable = isinstance(getattr(device, "info", None), DeviceInfo) and hasattr(device, "close")
        except BaseException as error:
            if sound(error):
                _complete(error)
                raise
            raise wrong("open", describe_error(error)) from error
        if not usable:
            raise wrong("open", f"it returns {type(device).__name__}, which is not a device")
        return guard(device, wrong)

    def _opened(self, backend: Backend, info: DeviceInfo) -> Device:
        """Call `Backend.open` with a time limit.

        Raises GpuTimeoutError at once while an earlier call has not returned.
        """
        name = info.backend
        if name in self._hanging and not self._hanging[name].is_set():
            hint = f"Check the driver with its own tools, or request a device of another backend than {name}"
            raise GpuTimeoutError("it is still opening another device", backend=name, operation="open", hint=hint)
        ended = Event()

        def call() -> Device:
            try:
                return backend.open(info.index)
            finally:
                ended.set()

        try:
            return bounded(call, name, "opening a device", seconds=OPEN_SECONDS, late=_close)
        except GpuTimeoutError:
            self._hanging[name] = ended
            raise


def _wrong(info: DeviceInfo, origin: tuple[str, str], operation: str, what: str) -> BackendIncompatibleError:
    distribution, version = origin
    return BackendIncompatibleError(
        f"{info.request} fails, a fault of {distribution} {version}: {what}",
        backend=info.backend,
        operation=operation,
        hint=f"Upgrade {distribution}, or report it to its authors {REPORT}",
    )


def _complete(error: BaseException) -> None:
    """Add the operation "open" to an error, and a hint if the plugin gave none."""
    if not isinstance(error, GpuError):
        return
    error.operation = error.operation or "open"
    if not error.hint:
        error.hint = HINTS.get(type(error), "Use another device; `bitnet devices` lists them")


def _close(device: Device) -> None:
    """Close a device that opened too late."""
    with suppress(Exception):
        device.close()

"""Whose buffers, kernels and recordings these are, whether they are alive, and when a device may be asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, NoReturn

from bitnet_hal.device import Buffer, DeviceInfo, Kernel, Recording
from bitnet_hal.errors import DeviceLostError, GpuError, UnsupportedError
from bitnet_hal.launches import B, BoundLaunch, K, LaunchRecording


class Ownership(Generic[B, K]):
    """What a device has given out, and the state that it is in."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self._buffers: dict[int, B] = {}  # by id, as the two below: what is alive
        self._kernels: dict[int, K] = {}
        self._recordings: dict[int, LaunchRecording[B, K]] = {}
        self._recording: list[BoundLaunch[B, K]] | None = None
        self._thread = threading.current_thread()
        self._closed = self._lost = False
        self._as_fault: Callable[[BaseException, str], BaseException] | None = None  # set by bitnet_hal.guard

    def _enter_thread(self) -> None:
        """A plugin may write it: called first where the calling thread is not that of the last call."""

    def _converted(self, error: Exception, operation: str) -> GpuError | None:
        """A plugin may write it: our error for one that the driver's binding raised, None for any other."""
        return None

    @contextmanager
    def _entered(self, operation: str, *, recording: bool = True) -> Iterator[None]:
        """recording: whether the operation is allowed inside `record()`. Errors of drivers get the device's name."""
        self._begin(operation, recording=recording)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is raised again
            raise_converted(self._own_error(error, operation), error)

    def _begin(self, operation: str, *, recording: bool = True) -> None:
        """Check that the operation is allowed now, and tell the plugin of a new thread."""
        if self._closed:
            raise ValueError(f"{operation} after close()")
        if self._lost:
            raise DeviceLostError(
                "the device was lost", backend=self.info.backend, device=self.info.name, operation=operation
            )
        if not recording and self._recording is not None:
            raise ValueError(f"{operation} inside record()")
        if threading.current_thread() is not self._thread:
            self._enter()

    def _own_error(self, error: Exception, operation: str) -> Exception:
        """Return the GpuError of a driver's error, with the device's name; any other error as it is."""
        own = error if isinstance(error, GpuError) else self._converted(error, operation)
        if own is None:
            return error
        self._lost |= isinstance(own, DeviceLostError)
        own.device = own.device or self.info.name
        return own

    def _fail(self, error: BaseException, operation: str) -> NoReturn:
        """Raise an error of a method that the guard does not wrap: converted, and then as the guard's error."""
        own = self._own_error(error, operation) if isinstance(error, Exception) else error
        fault = own if self._as_fault is None else self._as_fault(own, operation)
        if own is not error and fault is not own:
            own.__cause__ = error
            raise_converted(fault, own)
        raise_converted(fault, error)

    def _enter(self) -> None:
        if (thread := threading.current_thread()) is not self._thread:  # its number may be used again
            self._thread = thread
            self._enter_thread()

    def _unsupported(self, message: str, operation: str) -> UnsupportedError:
        return UnsupportedError(message, backend=self.info.backend, device=self.info.name, operation=operation)

    def _keep(self, buffer: B) -> B:
        self._buffers[id(buffer)] = buffer
        return buffer

    def _own(self, buffer: Buffer) -> B:
        own = self._buffers.get(id(buffer))
        if own is None:
            raise ValueError("this buffer is not, or no longer, one of this device")
        return own

    def _outdate(self, gone: object) -> None:
        for recording in self._recordings.values():
            recording.stale |= id(gone) in recording.uses

    def _own_kernel(self, kernel: Kernel) -> K:
        own = self._kernels.get(id(kernel))
        if own is None:
            raise ValueError("this kernel is not, or no longer, one of this device")
        return own

    def _own_recording(self, recording: Recording) -> LaunchRecording[B, K]:
        """A recording of this device, all of whose buffers and kernels are still there."""
        own = self._recordings.get(id(recording))
        if own is None:
            raise ValueError("this recording is not, or no longer, one of this device")
        if own.stale:
            raise ValueError("a buffer or kernel of this recording is gone: it can only be closed")
        return own


def raise_converted(error: BaseException, original: BaseException) -> NoReturn:
    """Raise an error whose cause is the original one, unless both are the same."""
    if error is original:
        raise error
    raise error from original

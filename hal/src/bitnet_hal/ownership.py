"""Ownership of buffers, kernels and recordings, the queued work, and the state of a device: open, recording, lost or
closed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, NoReturn

from bitnet_hal.device import Buffer, DeviceInfo, DeviceType, Kernel, Recording, View
from bitnet_hal.errors import DeviceLostError, GpuError, UnsupportedError
from bitnet_hal.launches import B, BoundLaunch, K, LaunchRecording
from bitnet_hal.waiting import wait_limit

_SLOWEST = 2e10
_SLOWEST_SOFTWARE = 1e9
"""Multiply-adds per second that every GPU and every software device exceeds."""

_SLACK = 20.0
"""Ratio of the time that a device may take to its time at the highest speed measured."""

_LARGE = 1e9
"""Minimum multiply-adds of a wait that measures the speed of a device."""


class Ownership(Generic[B, K]):
    """The live objects of a device, its queued work, and its state."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self.log = logging.getLogger(type(self).__module__.partition(".")[0])  # of the plugin's package
        self._buffers: dict[int, B] = {}  # live objects by id, as in the two below
        self._kernels: dict[int, K] = {}
        self._recordings: dict[int, LaunchRecording[B, K]] = {}
        self._recording: list[BoundLaunch[B, K]] | None = None
        self._work = QueuedWork(info.type)
        self._thread = threading.current_thread()
        self._closed = self._lost = False
        self._as_fault: Callable[[BaseException, str], BaseException] | None = None  # set by bitnet_hal.guard

    def _enter_thread(self) -> None:
        """Make the device current for this thread; called first when the thread changed. A plugin may override it."""

    def _converted(self, error: Exception, operation: str) -> GpuError | None:
        """Return the GpuError for an exception of the driver's binding, None for others. A plugin may override it."""
        return None

    @contextmanager
    def _entered(self, operation: str, *, recording: bool = True) -> Iterator[None]:
        """Check the device's state and add its name to errors. recording: whether `record()` permits the operation."""
        self._begin(operation, recording=recording)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is raised again
            raise_converted(self._own_error(error, operation), error)

    def _begin(self, operation: str, *, recording: bool = True) -> None:
        """Raise ValueError or DeviceLostError unless the operation is allowed now, and enter a new thread."""
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

    def _begin_transfer(self, operation: str, view: View, host_bytes: int) -> B:
        """Begin a copy between a view and `host_bytes` bytes of host memory; returns the view's buffer."""
        self._begin(operation)
        check_transfer(operation, host_bytes, view.nbytes, view.offset)
        return self._own(view.buffer)

    def _own_error(self, error: Exception, operation: str) -> Exception:
        """Return the GpuError of a driver's error, with the device's name; any other error as it is."""
        own = error if isinstance(error, GpuError) else self._converted(error, operation)
        if own is None:
            return error
        self._lost |= isinstance(own, DeviceLostError)
        own.device = own.device or self.info.name
        self.log.debug("%s: %s fails: %s", self.info.request, operation, own)
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
        if (thread := threading.current_thread()) is not self._thread:  # thread ids are reused, objects are not
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
            raise ValueError("this buffer was freed or belongs to another device")
        return own

    def _outdate(self, gone: object) -> None:
        for recording in self._recordings.values():
            recording.stale |= id(gone) in recording.uses

    def _own_kernel(self, kernel: Kernel) -> K:
        own = self._kernels.get(id(kernel))
        if own is None:
            raise ValueError("this kernel was released or belongs to another device")
        return own

    def _own_recording(self, recording: Recording) -> LaunchRecording[B, K]:
        """Return a recording of this device. Raises ValueError unless all its buffers and kernels are alive."""
        own = self._recordings.get(id(recording))
        if own is None:
            raise ValueError("this recording was closed or belongs to another device")
        if own.stale:
            raise ValueError("a buffer or kernel of this recording was freed: it can only be closed")
        return own


class QueuedWork:
    """The multiply-adds that a device has queued, and the limit of a wait for them.

    A limit in seconds alone would mistake a slow device with much work for one that hangs: 512 rows of a model of
    8 billion weights are 4e12 multiply-adds. seconds: the limit without work. queued, done: multiply-adds so far.
    """

    def __init__(self, kind: DeviceType) -> None:
        self.seconds = wait_limit(kind)
        self.queued = 0.0
        self.done = 0.0
        self._rate = _SLOWEST_SOFTWARE if kind is DeviceType.SOFTWARE else _SLOWEST
        self._began = 0.0

    @property
    def limit(self) -> float:
        """Maximum seconds of a wait for everything queued."""
        return self.seconds + (self.queued - self.done) / self._rate

    def add(self, work: float) -> None:
        """Add queued work."""
        if self.queued == self.done:
            self._began = time.perf_counter()
        self.queued += work

    def finish(self, upto: float) -> None:
        """Record that the work up to this value of `queued` is done, and update the device's speed."""
        now = time.perf_counter()
        work = upto - self.done
        if work > _LARGE and now > self._began:
            self._rate = max(self._rate, work / (now - self._began) / _SLACK)
        self.done = max(self.done, upto)
        self._began = now


def check_transfer(operation: str, source: int, target: int, *offsets: int) -> None:
    """Raise ValueError unless a transfer has equal sizes in bytes, and offsets divisible by 4."""
    if source != target:
        raise ValueError(f"{operation} of {source} bytes into {target}")
    for offset in offsets:
        if offset % 4:
            raise ValueError(f"{operation} at {offsets[0]}: offsets are multiples of 4")


def raise_converted(error: BaseException, original: BaseException) -> NoReturn:
    """Raise an error whose cause is the original one, unless both are the same."""
    if error is original:
        raise error
    raise error from original

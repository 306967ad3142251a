"""Base class of devices: it checks arguments and ownership, keeps launches while recording, and replays them.

A plugin derives from it and implements the methods of `DriverMethods`, or implements `bitnet_hal.device.Device` itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from bitnet_hal.checks import check_launch
from bitnet_hal.device import Buffer, Device, Kernel, MemoryKind, Recording, TransferMode, Tuning, View
from bitnet_hal.driver_methods import DriverMethods
from bitnet_hal.errors import (
    GpuError,
    OutOfMemoryError,
)
from bitnet_hal.features import MAX_ASYNC_READ
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.kernels.types import Grid
from bitnet_hal.launches import B, Bound, BoundLaunch, K, LaunchRecording
from bitnet_hal.ownership import check_transfer
from bitnet_hal.waiting import TIMEOUT_VARIABLE, multiply_adds

LOGGED_BYTES = 1 << 20
"""Larger allocations are logged."""

__all__ = [
    "TIMEOUT_VARIABLE",
    "BaseDevice",
    "Bound",
    "BoundLaunch",
    "LaunchRecording",
]


class BaseDevice(DriverMethods[B, K]):
    """A device that validates every call before the driver runs anything.

    A plugin implements the methods of `DriverMethods`. After a DeviceLostError only `close` is accepted.
    """

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> B:
        """See Device."""
        with self._entered("alloc"):
            if nbytes <= 0:
                raise ValueError(f"a buffer needs at least one byte, not {nbytes}")
            if kind is MemoryKind.SHARED and self.info.transfer is not TransferMode.UNIFIED:
                raise self._unsupported("host and device do not share memory", "alloc")
            if 0 < self.info.max_allocation < nbytes:
                raise OutOfMemoryError(
                    f"cannot allocate {nbytes:,} bytes: the largest buffer may have {self.info.max_allocation:,}",
                    requested=nbytes,
                    backend=self.info.backend,
                    device=self.info.name,
                    hint="Use a smaller context, or a device with larger buffers",
                )
            if nbytes > LOGGED_BYTES:
                self.log.debug("%s: allocate %s bytes of %s memory", self.info.request, f"{nbytes:,}", kind.value)
            return self._keep(self._alloc(nbytes, kind))

    def wrap(self, host: memoryview) -> B | None:
        """See Device."""
        with self._entered("wrap"):
            buffer = self._wrap(host.cast("B")) if host.nbytes else None
            return None if buffer is None else self._keep(buffer)

    def free(self, buffer: Buffer) -> None:
        """See Device."""
        with self._entered("free", recording=False):
            own = self._own(buffer)
            del self._buffers[id(own)]
            self._outdate(own)
            self._free(own)

    def upload(self, dst: View, src: memoryview) -> None:
        """See Device."""
        try:
            buffer = self._begin_transfer("upload", dst, src.nbytes)
            if src.nbytes:
                self._upload(buffer, dst.offset, src.cast("B"))
        except BaseException as error:  # noqa: BLE001 - _fail raises it again
            self._fail(error, "upload")

    def download(self, src: View, dst: memoryview) -> None:
        """See Device."""
        try:
            buffer = self._begin_transfer("download", src, dst.nbytes)
            if dst.readonly:
                raise ValueError("download into read-only memory")
            if src.nbytes:
                self._download(buffer, src.offset, dst.cast("B"))
                self._work.finish(self._work.queued)
        except BaseException as error:  # noqa: BLE001 - _fail raises it again
            self._fail(error, "download")

    def copy(self, src: View, dst: View) -> None:
        """See Device."""
        with self._entered("copy"):
            check_transfer("copy", src.nbytes, dst.nbytes, src.offset, dst.offset)
            source = self._own(src.buffer)
            target = self._own(dst.buffer)
            if source is target and abs(src.offset - dst.offset) < src.nbytes:
                raise ValueError("copy between overlapping views")
            if src.nbytes:
                self._copy(source, src.offset, target, dst.offset, src.nbytes)

    def compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> K:
        """See Device."""
        with self._entered("compile"):
            if CATALOGUE.get(spec.name) is not spec or not (spec.base or spec.name in self.info.kernels):
                raise self._unsupported(f"it has no kernel {spec.name}", "compile")
            spec.check_constants(constants)
            spec.check_tile(tuning.tile)
            began = time.perf_counter()
            kernel = self._compile(spec, constants, tuning)
            self.log.debug("%s: compiled %s in %.3f s", self.info.request, spec.name, time.perf_counter() - began)
            self._kernels[id(kernel)] = kernel
            return kernel

    def compile_ahead(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> None:
        """See AheadCompilingDevice."""
        with self._entered("compile"):
            self._compile_ahead(spec, constants, tuning)

    def release(self, kernel: Kernel) -> None:
        """See Device."""
        with self._entered("release", recording=False):
            own = self._own_kernel(kernel)
            del self._kernels[id(own)]
            self._outdate(own)
            self._release(own)

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        """See Device."""
        with self._entered(kernel.spec.name):
            own = self._own_kernel(kernel)
            check_launch(own, grid, views, params, self.info)
            bound = tuple(Bound(self._own(view.buffer), view.offset, view.nbytes) for view in views)
            if 0 in grid:
                return
            launch = BoundLaunch(own, grid, bound, bytes(params))
            if self._recording is None:
                self._work.add(multiply_adds(own.spec, launch.params))
                self._run(launch)
            else:
                self._recording.append(launch)

    @contextmanager
    def record(self) -> Iterator[LaunchRecording[B, K]]:
        """See Device."""
        with self._entered("record", recording=False):
            recording = LaunchRecording(self.forget)
            launches: list[BoundLaunch[B, K]] = []
            self._recording = launches
        try:
            yield recording
        finally:
            self._recording = None
        with self._entered("record"):
            recording.launches = tuple(launches)
            recording.work = sum(multiply_adds(launch.kernel.spec, launch.params) for launch in launches)
            recording.uses = frozenset(
                id(used) for launch in launches for used in (launch.kernel, *(bound.buffer for bound in launch.bound))
            )
            self._record(recording)
            self._recordings[id(recording)] = recording

    def replay(self, recording: Recording) -> None:
        """See Device."""
        self.replay_many(recording, 1)

    def replay_many(self, recording: Recording, times: int) -> None:
        """See RepeatingDevice."""
        try:
            self._begin("replay", recording=False)
            own = self._own_recording(recording)
            self._work.add(times * own.work)
            self._replay_many(own, times)
        except BaseException as error:  # noqa: BLE001 - _fail raises it again
            self._fail(error, "replay")

    def timings(self, recording: Recording) -> list[tuple[str, float]]:
        """See TimedDevice."""
        with self._entered("timings", recording=False):
            own = self._own_recording(recording)
            names = [launch.kernel.spec.name for launch in own.launches]
            self._work.add(own.work)
            return list(zip(names, self._timings(own) if names else (), strict=True))

    def read_async(self, src: View) -> Callable[[memoryview], None]:
        """See AsyncReadbackDevice."""
        with self._entered("async-readback", recording=False):
            check_transfer("async-readback", src.nbytes, min(src.nbytes, MAX_ASYNC_READ), src.offset)
            read = self._read_async(self._own(src.buffer), src.offset, src.nbytes)
            before = self._work.queued

        def into(dst: memoryview) -> None:
            with self._entered("async-readback"):
                check_transfer("async-readback", src.nbytes, dst.nbytes)
                self._ahead = self._work.queued > before
                try:
                    read(dst.cast("B"))
                finally:
                    self._ahead = False
                self._work.finish(before)

        return into

    def mark(self) -> object:
        """See PeerCopyDevice."""
        with self._entered("peer-copy", recording=False):
            return self._mark()

    def copy_from(self, other: Device, src: View, dst: View, mark: object) -> None:
        """See PeerCopyDevice."""
        with self._entered("peer-copy", recording=False):
            check_transfer("peer-copy", src.nbytes, dst.nbytes, src.offset, dst.offset)
            if not isinstance(other, BaseDevice) or other.info.physical_id not in self.info.peers:
                raise self._unsupported(f"it cannot read the memory of {other.info.request}", "peer-copy")
            source = other._own(src.buffer)
            target = self._own(dst.buffer)
            if src.nbytes:
                self._copy_from(other, mark, source, src.offset, target, dst.offset, src.nbytes)

    def sensors(self) -> Mapping[str, float]:
        """See SensorDevice."""
        with self._entered("sensors", recording=False):
            return self._sensors()

    def kernel_resources(self, kernel: Kernel) -> Mapping[str, float]:
        """See KernelResourcesDevice."""
        with self._entered("kernel-resources", recording=False):
            return self._kernel_resources(self._own_kernel(kernel))

    def synchronize(self) -> None:
        """See Device."""
        with self._entered("synchronize", recording=False):
            self._wait()
            self._work.finish(self._work.queued)

    def close(self) -> None:
        """See Device."""
        if self._closed:
            return
        self._enter()
        self._closed = True
        self._recording = None
        if not self._lost:
            with suppress(GpuError):  # a device that does not finish is closed anyway
                self._wait()
        for recording in self._recordings.values():
            self._drop(recording)
        for buffer in self._buffers.values():
            with suppress(GpuError):
                self._free(buffer)
        self._recordings.clear()
        self._buffers.clear()
        self._kernels.clear()
        self._close()

    def forget(self, recording: LaunchRecording[B, K]) -> None:
        """Free a recording; a second call does nothing."""
        if self._recordings.pop(id(recording), None) is not None:
            self._enter()
            self._drop(recording)

    def _drop(self, recording: LaunchRecording[B, K]) -> None:
        with suppress(GpuError):  # a lost device has nothing left to free
            self._forget(recording)
        recording.launches = ()
        recording.native = None

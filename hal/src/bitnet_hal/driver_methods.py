"""The driver's part of a device: the methods that a plugin implements or may override."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from bitnet_hal.device import DeviceInfo, DeviceType, MemoryKind, Tuning
from bitnet_hal.errors import GpuTimeoutError
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.launches import B, BoundLaunch, K, LaunchRecording
from bitnet_hal.ownership import Ownership
from bitnet_hal.waiting import TIMEOUT_VARIABLE, ready_within


class DriverMethods(Ownership[B, K], ABC):
    """The methods that `BaseDevice` calls once a call is valid.

    Those with an underscore get valid arguments: buffers and kernels belong to this device and are alive, ranges lie
    within them, nothing is empty. They raise the errors of `bitnet_hal.errors`.
    """

    def __init__(self, info: DeviceInfo) -> None:
        super().__init__(info)
        self._ahead = False  # True while waiting for work that has later work queued behind it
        self.log.info("opened %s: %s, %s", info.request, info.name, info.driver)

    @property
    def timeout(self) -> float:
        """Maximum seconds of a wait now: those of BITNET_GPU_TIMEOUT, plus the time that queued work may take."""
        return self._work.limit

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        """Set the maximum seconds of a wait without queued work."""
        self._work.seconds = seconds

    # Abstract methods: the driver's part.

    @abstractmethod
    def free_memory(self) -> int:
        """See Device."""

    @abstractmethod
    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """See Device."""

    @abstractmethod
    def _alloc(self, nbytes: int, kind: MemoryKind) -> B:
        """Allocate a zero-filled buffer, with room up to the next multiple of 16 bytes."""

    @abstractmethod
    def _free(self, buffer: B) -> None:
        """Free a buffer. If the driver frees immediately, wait first for queued work that uses it."""

    @abstractmethod
    def _upload(self, buffer: B, offset: int, source: memoryview) -> None:
        """Copy to the device. source: one-dimensional bytes, which the caller may change once this returns."""

    @abstractmethod
    def _download(self, buffer: B, offset: int, target: memoryview) -> None:
        """Copy to the host and wait. target: one-dimensional bytes."""

    @abstractmethod
    def _copy(self, source: B, source_at: int, target: B, target_at: int, nbytes: int) -> None: ...

    @abstractmethod
    def _compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> K: ...

    @abstractmethod
    def _run(self, launch: BoundLaunch[B, K]) -> None:
        """Queue one launch; no dimension of its grid is 0."""

    @abstractmethod
    def _wait(self) -> None:
        """Wait until everything queued has finished. Raises GpuTimeoutError after `timeout` seconds."""

    @abstractmethod
    def _close(self) -> None:
        """Free kernels, queue and context. Buffers and recordings are freed already; the device may be lost."""

    # Methods that a plugin may override.

    def _wrap(self, host: memoryview) -> B | None:
        """Return a buffer over these bytes without a copy, None if the device cannot read host memory."""
        return None

    def _record(self, recording: LaunchRecording[B, K]) -> None:
        """Set recording.native to the driver's form of recording.launches, such as a graph."""

    def _replay(self, recording: LaunchRecording[B, K]) -> None:
        """Queue all launches of a recording."""
        for launch in recording.launches:
            self._run(launch)

    def _replay_many(self, recording: LaunchRecording[B, K], times: int) -> None:
        """Queue all launches of a recording `times` times."""
        for _ in range(times):
            self._replay(recording)

    def _timings(self, recording: LaunchRecording[B, K]) -> Sequence[float]:
        """Replay once and return the seconds of each of recording.launches (at least one).

        Required for the feature "timings".
        """
        raise self._unsupported("the device does not time its launches", "timings")

    def _compile_ahead(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> None:
        """Start to compile a kernel in another thread. Required for the feature "compile-ahead"."""
        raise self._unsupported("the device compiles kernels in the thread that asks for them", "compile")

    def _read_async(self, buffer: B, offset: int, nbytes: int) -> Callable[[memoryview], None]:
        """Queue a copy to the host and return a function that waits for it and stores the bytes.

        Required for the feature "async-readback".
        """
        raise self._unsupported("the device has no asynchronous readback", "async-readback")

    def _mark(self) -> object:
        """Return a mark that follows all queued work. Required for the feature "peer-copy"."""
        raise self._unsupported("the device cannot read the memory of others", "peer-copy")

    def _copy_from(
        self,
        other: DriverMethods[B, K],
        mark: object,
        source: B,
        source_at: int,
        target: B,
        target_at: int,
        nbytes: int,
    ) -> None:
        """Queue a copy from a peer, after the work before its mark. Required for the feature "peer-copy"."""
        raise self._unsupported("the device cannot read the memory of others", "peer-copy")

    def _sensors(self) -> Mapping[str, float]:
        """See SensorDevice. Required for the feature "sensors"."""
        raise self._unsupported("the device has no sensors", "sensors")

    def _kernel_resources(self, kernel: K) -> Mapping[str, float]:
        """See KernelResourcesDevice. Required for the feature "kernel-resources"."""
        raise self._unsupported("the device does not report what a kernel uses", "kernel-resources")

    def _forget(self, recording: LaunchRecording[B, K]) -> None:
        """Free recording.native; replays already queued still finish."""

    def _release(self, kernel: K) -> None:
        """Free a kernel; launches already queued still finish."""

    def held_bytes(self) -> int:
        """Return 0; a plugin that keeps device memory for itself overrides it."""
        return 0

    # Helpers for a plugin.

    def _until(self, ready: Callable[[], bool], operation: str) -> None:
        """Poll `ready`, for drivers whose waits are unbounded. Raises GpuTimeoutError after `timeout` seconds."""
        limit = self.timeout
        spins = self.info.type in (DeviceType.GPU, DeviceType.INTEGRATED)
        if not ready_within(limit, ready, ahead=self._ahead, spins=spins):
            raise GpuTimeoutError(
                f"not done after {limit:.4g} s",
                backend=self.info.backend,
                device=self.info.name,
                operation=operation,
                hint=f"Set {TIMEOUT_VARIABLE} to more seconds if the device is only slow",
            )

"""The hardware abstraction layer: what a backend implements, and the few types it shares with core.

The contract is at launch level: buffers, compiled kernels, launches, recordings. What a kernel computes is defined by
core's catalogue (`bitnet_core.kernels`) and shown by the numpy device (`bitnet_core.reference`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bitnet_core.kernels.spec import KernelSpec

API_VERSION = (1, 1)
"""Version of this contract. A plugin states the one it was written for as a literal, and is accepted when the major
is equal and its minor is not above core's."""


class MemoryKind(Enum):
    """Where a buffer lives."""

    DEVICE = "device"
    HOST = "host"  # page-locked host memory that the device can reach
    SHARED = "shared"  # one address space for both sides


class DeviceType(Enum):
    """What kind of hardware a device is; software devices rank below the native CPU backend."""

    GPU = "gpu"
    INTEGRATED = "integrated"
    CPU = "cpu"
    SOFTWARE = "software"  # a GPU API carried out by a CPU (PoCL, llvmpipe, SwiftShader)


class TransferMode(Enum):
    """How bytes get to the kernels."""

    UNIFIED = "unified"  # kernels read host memory; `Device.wrap` may give zero copies
    EXPLICIT_COPY = "explicit-copy"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device, as its driver describes it. Sizes are bytes; 0 means that the driver does not tell."""

    backend: str
    index: int
    name: str
    type: DeviceType
    vendor: str = ""
    driver: str = ""
    total_memory: int = 0
    max_allocation: int = 0  # largest single buffer
    max_binding: int = 0  # largest view that a launch may bind
    alignment: int = 1  # offsets of bound views are multiples of this (a power of two, at most 4096)
    transfer: TransferMode = TransferMode.EXPLICIT_COPY
    physical_id: str = ""  # PCI address as "0000:03:00.0", else a UUID: equal where two backends see one card
    kernels: frozenset[str] = frozenset()  # optional catalogue kernels on offer, beside all the base ones
    features: frozenset[str] = frozenset()  # FEATURES below
    fake: bool = False  # a stand-in made by BITNET_GPU_FAKE
    extra: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    @property
    def request(self) -> str:
        """The device request that names exactly this device, such as "opencl:1"."""
        return f"{self.backend}:{self.index}"


FEATURES = frozenset({"timings", "saved-reads"})
"""Optional abilities a device may list in DeviceInfo.features: "timings" = it has `timings(recording)`, "saved-reads" =
it has `saved_reads(recording)`."""


class Buffer(Protocol):
    """Memory owned by a device. Plugins add their handle; core uses only this."""

    @property
    def nbytes(self) -> int: ...

    @property
    def kind(self) -> MemoryKind: ...


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A byte range of a buffer, as bound to a launch or named in a transfer."""

    buffer: Buffer
    offset: int
    nbytes: int

    def __post_init__(self) -> None:
        if self.offset < 0 or self.nbytes < 0 or self.offset + self.nbytes > self.buffer.nbytes:
            raise ValueError(
                f"view of {self.nbytes} bytes at {self.offset} leaves its buffer of {self.buffer.nbytes} bytes"
            )

    def part(self, offset: int, nbytes: int) -> View:
        """The range `offset`..`offset + nbytes` of this view."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(f"part of {nbytes} bytes at {offset} leaves its view of {self.nbytes} bytes")
        return View(self.buffer, self.offset + offset, nbytes)


def whole(buffer: Buffer) -> View:
    """The view of all of a buffer."""
    return View(buffer, 0, buffer.nbytes)


class Kernel(Protocol):
    """A kernel compiled for one device with one set of constants."""

    @property
    def spec(self) -> KernelSpec: ...

    @property
    def constants(self) -> Mapping[str, int]: ...


class Recording(Protocol):
    """Launches kept for replay. `close` frees what the device holds for it, and may be called twice."""

    def close(self) -> None: ...


Grid = tuple[int, int, int]
"""Workgroups in x, y and z."""


class Device(Protocol):
    """One context with one in-order queue, used by one thread.

    Launches and transfers take effect in the order of the calls. Every method may raise the errors of
    `bitnet_core.errors`; after DeviceLostError the device can only be closed.
    """

    @property
    def info(self) -> DeviceInfo: ...

    def free_memory(self) -> int:
        """Bytes that can still be allocated, or -1 where the driver does not tell."""

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """A zero-filled buffer of `nbytes` > 0. OutOfMemoryError carries requested and free bytes."""

    def wrap(self, host: memoryview) -> Buffer | None:
        """A read-only buffer over host memory without a copy (the caller keeps it alive); None = copy instead."""

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back. Freeing it twice, or a buffer of another device, is a ValueError."""

    def upload(self, dst: View, src: memoryview) -> None:
        """Copy `src` (C-contiguous, dst.nbytes bytes) to the device; `src` may be reused on return."""

    def download(self, src: View, dst: memoryview) -> None:
        """Copy to writable host memory of src.nbytes bytes; waits until it is there."""

    def copy(self, src: View, dst: View) -> None:
        """Copy between two views of equal size that do not overlap."""

    def tuning(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> dict[str, int]:
        """The tuning constants this device wants for a launch: at least those in `spec.tuning`, whose values set the
        grid. `constants` are the semantic ones and `params` the launch's parameters, so that a device can choose
        another tile, or another source, for a prompt than for a single token."""

    def compile(self, spec: KernelSpec, constants: Mapping[str, int]) -> Kernel:
        """Compile a kernel with its semantic and tuning constants. UnsupportedError if the device lacks it,
        KernelCompileError with the compiler's log if it does not build."""

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        """Queue one kernel. `views` follow kernel.spec.bindings; `params` is kernel.spec.pack(...).

        ValueError, before anything runs, where they do not fit the kernel (`hal.checks.check_launch` looks).
        """

    def record(self) -> AbstractContextManager[Recording]:
        """Launches inside the `with` block are kept, not run."""

    def replay(self, recording: Recording) -> None:
        """Queue all launches of a recording, in order, with the views and parameters they were recorded with.

        Where a recorded matmul_dense is followed at once by the argmax_advance or top_k that reads its logits, a device
        may compute the other logits only roughly, as long as what is chosen stays the same: a download of logits after
        such a replay is for debugging. A recording that ends with matmul_dense leaves exact logits.
        """

    def synchronize(self) -> None:
        """Wait until everything queued has finished."""

    def close(self) -> None:
        """Free everything. May be called twice."""


class TimedDevice(Device, Protocol):
    """A device with the feature "timings"."""

    def timings(self, recording: Recording) -> Sequence[tuple[str, float]]:
        """Replay once and return (kernel name, seconds) of every launch, in order."""


class SavingDevice(Device, Protocol):
    """A device with the feature "saved-reads"."""

    def saved_reads(self, recording: Recording) -> int:
        """Bytes of its launches' operands that one replay does not read, because the device found a shorter way to the
        same results, less what it reads in their place."""


class Backend(Protocol):
    """A driver API. Constructing it loads no driver."""

    @property
    def name(self) -> str:
        """Equals the entry point's name: "cuda", "opencl", ..."""

    @property
    def api(self) -> tuple[int, int]:
        """The HAL version the plugin was written for: a literal in the plugin, never imported from core."""

    def devices(self) -> Sequence[DeviceInfo]:
        """Load the driver and list the devices; BackendUnavailableError carries the reason and the fix."""

    def open(self, index: int) -> Device:
        """Open one of `devices()`; DeviceNotFoundError if the index is out of range."""

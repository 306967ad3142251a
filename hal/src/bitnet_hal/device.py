"""The hardware abstraction layer: what a backend implements, and the few types it shares with its callers.

The contract is at launch level: buffers, compiled kernels, launches, recordings. What a kernel computes is defined by
the catalogue (`bitnet_hal.kernels`) and shown by the numpy device (`bitnet_hal.reference`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from bitnet_hal.kernels.types import Grid

if TYPE_CHECKING:
    from bitnet_hal.kernels.spec import KernelSpec


class MemoryKind(Enum):
    """Where a buffer lives. The plan uses DEVICE alone; the others serve programs that move their own data."""

    DEVICE = "device"
    HOST = "host"  # page-locked host memory that the device can reach: copies to and from it are the fastest
    SHARED = "shared"  # one address space for both sides; UnsupportedError where transfer is not UNIFIED


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
    max_grid: tuple[int, int, int] = (0, 0, 0)  # most workgroups of a launch in x, y and z
    alignment: int = 4  # offsets of bound views are multiples of this (a power of two, 4 to 4096)
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


BATCH_INVARIANT_ROWS = 5
"""Rows of one step that the feature "batch-invariant" speaks of."""

FEATURES = frozenset({"timings", "tunings", "async-readback", "lm-head-int8", "batch-invariant"})
"""Optional abilities a device may list in DeviceInfo.features: "timings" = it has `timings(recording)`, "tunings" = it
has `tunings(spec, constants, params)`, "async-readback" = it has `read_async(view)`, "lm-head-int8" = its approximate
logits of a head (kernels/lm_head_int8.py) were measured to save time, so that core makes the int8 copy unasked,
"batch-invariant" = a row in a step of up to BATCH_INVARIANT_ROWS rows gets the same bits as in a step of its own, so
that guessed tokens can be checked several at once. Names that core does not know, here and among the kernels, are
ignored: a plugin may be ahead of core."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a device wants one launch to be carried out; equal tunings of equal constants are one compiled kernel.

    tile: the constants that the grid depends on, exactly those that `KernelSpec.tuning` names.
    variant: which source: "" for the file `<name>`, "split" for `<name>_split`.
    private: further compile-time constants of that source.
    workspace: bytes that the launch binds after the views of its bindings, 0 for none. Core allocates them, zeroed,
    once for a compiled kernel; every launch finds them as the last one left them, so a kernel that counts in them ends
    with zeros.
    """

    tile: Mapping[str, int] = field(default_factory=dict)
    variant: str = ""
    private: Mapping[str, int] = field(default_factory=dict)
    workspace: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        """What distinguishes it from other tunings."""
        return self.variant, self.workspace, tuple(sorted(self.tile.items())), tuple(sorted(self.private.items()))

    def source(self, kernel: str) -> str:
        """Name of the source of a kernel of that name."""
        return f"{kernel}_{self.variant}" if self.variant else kernel

    def and_with(self, changes: Sequence[tuple[Mapping[str, int], Mapping[str, int]]]) -> list[Tuning]:
        """This one, then those that differ in (constants of the tile, private ones), for `TunableDevice.tunings`."""
        others = [replace(self, tile={**self.tile, **t}, private={**self.private, **p}) for t, p in changes]
        return [self, *(one for one in others if one.key != self.key)]

    def with_lanes(self, most: int) -> list[Tuning]:
        """This one, then those in which 4 to `most` LANES share a matrix row, and a group has the fewer rows."""
        work = self.tile["TILE_N"] * self.private["LANES"]
        fitting = [lanes for lanes in (4, 8, 16, 32) if lanes <= min(most, work)]
        return self.and_with([({"TILE_N": work // lanes}, {"LANES": lanes}) for lanes in fitting])


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
    """A kernel compiled for one device with one set of semantic constants and one tuning."""

    @property
    def spec(self) -> KernelSpec: ...

    @property
    def constants(self) -> Mapping[str, int]: ...

    @property
    def tuning(self) -> Tuning: ...


class Recording(Protocol):
    """Launches kept for replay. `close` frees what the device holds for it, and may be called twice."""

    def close(self) -> None: ...


class Device(Protocol):
    """One context with one in-order queue.

    Calls come from one thread at a time, which need not be the same one each time. Launches and transfers take effect
    in the order of the calls. Every method may raise the errors of `bitnet_hal.errors`; after DeviceLostError the
    device can only be closed. What is not, or no longer, of this device (a buffer, kernel or recording that was freed,
    released or closed, or that another device made) is a ValueError before anything runs, and so is every call after
    `close`.
    """

    @property
    def info(self) -> DeviceInfo: ...

    def free_memory(self) -> int:
        """Bytes that can still be allocated, or -1 where the driver does not tell."""

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """A zero-filled buffer of `nbytes` > 0, with room up to the next multiple of 16 for kernels that read whole
        words. OutOfMemoryError carries requested and free bytes."""

    def held_bytes(self) -> int:
        """Device memory that the device holds for itself (staging, descriptors), beside what `alloc` gave."""

    def wrap(self, host: memoryview) -> Buffer | None:
        """A read-only buffer over host memory without a copy (the caller keeps it alive); None = copy instead."""

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back; what is queued and uses it still finishes. Recordings that bind it can only be closed."""

    def upload(self, dst: View, src: memoryview) -> None:
        """Copy `src` (C-contiguous, dst.nbytes bytes) to the device; `src` may be reused on return."""

    def download(self, src: View, dst: memoryview) -> None:
        """Copy to writable host memory of src.nbytes bytes; waits until it is there."""

    def copy(self, src: View, dst: View) -> None:
        """Copy between two views of equal size that do not overlap. Offsets of all transfers are multiples of 4, sizes
        need not be; anything else is a ValueError."""

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """How this device wants a launch: `constants` are the semantic ones and `params` the launch's parameters, so
        that it can choose another tile, or another source, for a prompt than for a single token. UnsupportedError for
        an optional kernel that it does not offer for such constants or sizes."""

    def compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> Kernel:
        """Compile a kernel with its semantic constants and a tuning that `tuning` gave. UnsupportedError if the device
        lacks it, KernelCompileError with the compiler's log if it does not build."""

    def release(self, kernel: Kernel) -> None:
        """Forget a compiled kernel; recordings that launch it can only be closed."""

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        """Queue one kernel. `views` follow kernel.spec.bindings, then the workspace where kernel.tuning asks for one;
        `params` is kernel.spec.pack(...). No two views of a launch overlap, unless both are only read. A grid with a 0
        runs nothing.

        ValueError, before anything runs, where they do not fit the kernel (`bitnet_hal.checks.check_launch` looks).
        """

    def record(self) -> AbstractContextManager[Recording]:
        """Launches inside the `with` block are kept, not run. Uploads, downloads, copies, allocations and compilations
        inside it take effect at once, as they would outside; `free`, `release`, `replay`, `synchronize` and another
        `record` are a ValueError there. Where the block raises, nothing is kept."""

    def replay(self, recording: Recording) -> None:
        """Queue all launches of a recording, in order, with the views and parameters they were recorded with."""

    def synchronize(self) -> None:
        """Wait until everything queued has finished."""

    def close(self) -> None:
        """Free everything, also after the device was lost. May be called twice."""


class TimedDevice(Device, Protocol):
    """A device with the feature "timings"."""

    def timings(self, recording: Recording) -> Sequence[tuple[str, float]]:
        """Replay once and return (kernel name, seconds) of every launch, in order."""


class TunableDevice(Device, Protocol):
    """A device with the feature "tunings"."""

    def tunings(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> Sequence[Tuning]:
        """The tunings among which `bitnet tune` may choose by measuring, that of `tuning` first; all of them right.
        Where one was chosen, core asks `compile` for it instead. Errors as `tuning`."""


MAX_ASYNC_READ = 1 << 17
"""Bytes that `AsyncReadbackDevice.read_async` takes, at most."""


class AsyncReadbackDevice(Device, Protocol):
    """A device with the feature "async-readback"."""

    def read_async(self, src: View) -> Callable[[memoryview], None]:
        """Queue a copy of `src`, at most MAX_ASYNC_READ bytes, for the host. What is returned copies it to writable
        memory of src.nbytes bytes, and waits for what was queued before alone: what is queued after it goes on
        meanwhile. The last two are kept."""


class Backend(Protocol):
    """A driver API. Constructing it loads no driver.

    It may have an attribute `rank`, an int: its place in the order of preference (`discovery.known` has those of the
    backends that core knows).
    """

    @property
    def name(self) -> str:
        """Equals the entry point's name: "cuda", "opencl", ..."""

    @property
    def api(self) -> tuple[int, int]:
        """The HAL version the plugin was written for: a literal in the plugin, never imported."""

    def devices(self) -> Sequence[DeviceInfo]:
        """Load the driver and list the devices; BackendUnavailableError carries the reason and the fix."""

    def open(self, index: int) -> Device:
        """Open the one of `devices()` whose `index` this is; DeviceNotFoundError if there is none. Indexes need not be
        consecutive: a device that a plugin leaves out (too old, say) keeps its number."""

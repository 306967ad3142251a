"""The hardware abstraction layer: the protocols that a backend implements and the types it shares with its callers.

The contract is at launch level: buffers, compiled kernels, launches, recordings. The catalogue (`bitnet_hal.kernels`)
defines the result of each kernel, the numpy device (`bitnet_hal.reference`) computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from bitnet_hal.kernels.types import Grid

if TYPE_CHECKING:
    from bitnet_hal.kernels.spec import KernelSpec


class MemoryKind(Enum):
    """The memory of a buffer. The plan uses DEVICE only; the others serve programs that move their own data."""

    DEVICE = "device"
    HOST = "host"  # page-locked host memory that the device can reach: copies to and from it are the fastest
    SHARED = "shared"  # one address space for both sides; UnsupportedError unless transfer is UNIFIED


class DeviceType(Enum):
    """The kind of hardware; software devices rank below the native CPU backend."""

    GPU = "gpu"
    INTEGRATED = "integrated"
    CPU = "cpu"
    SOFTWARE = "software"  # a GPU API carried out by a CPU (PoCL, llvmpipe, SwiftShader)


class TransferMode(Enum):
    """The memory that kernels read: the host's, or a copy on the device."""

    UNIFIED = "unified"  # kernels read host memory; `Device.wrap` may avoid copies
    EXPLICIT_COPY = "explicit-copy"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The description of one device. Sizes are bytes; 0 means unknown."""

    backend: str
    index: int
    name: str
    type: DeviceType
    vendor: str = ""
    driver: str = ""
    total_memory: int = 0
    max_allocation: int = 0  # largest single buffer
    max_binding: int = 0  # largest view that a launch may bind
    max_grid: tuple[int, int, int] = (0, 0, 0)  # maximum workgroups of a launch in x, y and z
    alignment: int = 4  # offsets of bound views are multiples of this (a power of two, 4 to 4096)
    transfer: TransferMode = TransferMode.EXPLICIT_COPY
    physical_id: str = ""  # PCI address as "0000:03:00.0", else a UUID; equal if two backends see the same card
    kernels: frozenset[str] = frozenset()  # optional catalogue kernels that it offers besides the base kernels
    features: frozenset[str] = frozenset()  # of `bitnet_hal.features.FEATURES`
    peers: frozenset[str] = frozenset()  # physical ids of the backend's devices whose memory it can read ("peer-copy")
    batch_invariant_rows: Mapping[str, int] = field(default_factory=dict)  # by kernel, see `invariant_rows`
    fake: bool = False  # a stand-in made by BITNET_GPU_FAKE
    extra: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    @property
    def request(self) -> str:
        """The device request for exactly this device, such as "opencl:1"."""
        return f"{self.backend}:{self.index}"

    def __reduce__(self) -> tuple[Callable[..., DeviceInfo], tuple[Any, ...]]:
        values = (getattr(self, entry.name) for entry in fields(self))
        # a read-only mapping cannot be pickled
        return DeviceInfo, tuple(dict(value) if isinstance(value, Mapping) else value for value in values)

    def invariant_rows(self, kernels: Iterable[str]) -> int:
        """Return the largest number of rows of a launch for which all these kernels are batch-invariant.

        A kernel is batch-invariant up to n rows if a row gets the same bits in every launch of 1 to n rows with the
        tuning of n rows, whatever the number and contents of the other rows and its own place among them.
        With the feature "batch-invariant" this holds for each launch's own tuning too. 1 for a kernel that
        `batch_invariant_rows` does not list; ANY_ROWS if the number of rows never matters, whatever the tuning.
        """
        return min((self.batch_invariant_rows.get(name, 1) for name in kernels), default=ANY_ROWS)


ANY_ROWS = 1 << 31
"""The number of rows of a kernel that is batch-invariant in launches of any size."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """A device's choice for one launch; equal tunings of equal constants share one compiled kernel.

    tile: the constants that determine the grid, exactly those named by `KernelSpec.tuning`.
    variant: the source: "" for the file `<name>`, "split" for `<name>_split`.
    private: further compile-time constants of that source.
    workspace: bytes bound after the kernel's bindings, 0 for none. Core allocates them once per compiled kernel,
    zeroed, and never clears them: a kernel that counts in them must reset them to 0.
    """

    tile: Mapping[str, int] = field(default_factory=dict)
    variant: str = ""
    private: Mapping[str, int] = field(default_factory=dict)
    workspace: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        """The hashable identity of this tuning."""
        return self.variant, self.workspace, tuple(sorted(self.tile.items())), tuple(sorted(self.private.items()))

    def source(self, kernel: str) -> str:
        """Return the name of the source file of a kernel."""
        return f"{kernel}_{self.variant}" if self.variant else kernel

    def and_with(self, changes: Sequence[tuple[Mapping[str, int], Mapping[str, int]]]) -> list[Tuning]:
        """Return this tuning followed by variants with the given (tile, private) overrides."""
        others = [replace(self, tile={**self.tile, **t}, private={**self.private, **p}) for t, p in changes]
        return [self, *(one for one in others if one.key != self.key)]

    def with_lanes(self, max_lanes: int) -> list[Tuning]:
        """Return this tuning followed by those in which 4 to `max_lanes` LANES share a matrix row."""
        work = self.tile["TILE_N"] * self.private["LANES"]
        fitting = [lanes for lanes in (4, 8, 16, 32) if lanes <= min(max_lanes, work)]
        return self.and_with([({"TILE_N": work // lanes}, {"LANES": lanes}) for lanes in fitting])


class Buffer(Protocol):
    """Memory owned by a device. A plugin's class adds its handle."""

    @property
    def nbytes(self) -> int: ...

    @property
    def kind(self) -> MemoryKind: ...


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A byte range of a buffer, bound to a launch or used in a transfer."""

    buffer: Buffer
    offset: int
    nbytes: int

    def __post_init__(self) -> None:
        if self.offset < 0 or self.nbytes < 0 or self.offset + self.nbytes > self.buffer.nbytes:
            raise ValueError(
                f"view of {self.nbytes} bytes at {self.offset} exceeds its buffer of {self.buffer.nbytes} bytes"
            )

    def part(self, offset: int, nbytes: int) -> View:
        """Return the range `offset`..`offset + nbytes` of this view. Raises ValueError if it exceeds the view."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(f"part of {nbytes} bytes at {offset} exceeds its view of {self.nbytes} bytes")
        return View(self.buffer, self.offset + offset, nbytes)


def whole(buffer: Buffer) -> View:
    """Return the view of a whole buffer."""
    return View(buffer, 0, buffer.nbytes)


class Kernel(Protocol):
    """A kernel compiled for one device, one set of semantic constants and one tuning."""

    @property
    def spec(self) -> KernelSpec: ...

    @property
    def constants(self) -> Mapping[str, int]: ...

    @property
    def tuning(self) -> Tuning: ...


class Recording(Protocol):
    """Launches kept for replay. `close` frees the device's resources and may be called twice."""

    def close(self) -> None: ...


class Device(Protocol):
    """One context with one in-order queue.

    Calls never overlap, but may come from different threads. Launches and transfers take effect in the order of the
    calls. Every method may raise the errors of `bitnet_hal.errors`; after DeviceLostError only `close` is allowed. A
    buffer, kernel or recording that was freed, released or closed, or that belongs to another device, raises ValueError
    before anything runs, as does every call after `close`.
    """

    @property
    def info(self) -> DeviceInfo: ...

    def free_memory(self) -> int:
        """Return the bytes that can still be allocated, -1 if unknown."""

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """Allocate a zero-filled buffer of `nbytes` > 0.

        Its memory extends to the next multiple of 16, for kernels that read whole words. Raises OutOfMemoryError with
        requested and free bytes.
        """

    def held_bytes(self) -> int:
        """Return the bytes of device memory used for staging and descriptors, not counting buffers from `alloc`."""

    def wrap(self, host: memoryview) -> Buffer | None:
        """Return a read-only buffer over host memory, which the caller keeps alive; None if a copy is needed."""

    def free(self, buffer: Buffer) -> None:
        """Free a buffer; queued work that uses it still finishes. Recordings that bind it can only be closed."""

    def upload(self, dst: View, src: memoryview) -> None:
        """Copy `src` (C-contiguous, dst.nbytes bytes) to the device; `src` may be reused on return."""

    def download(self, src: View, dst: memoryview) -> None:
        """Copy to writable host memory of src.nbytes bytes and wait for it."""

    def copy(self, src: View, dst: View) -> None:
        """Copy between two views of equal size that do not overlap.

        Offsets of all transfers are multiples of 4, sizes need not be. Raises ValueError otherwise.
        """

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """Choose the tuning of a launch from its semantic constants and its parameters.

        A prompt may thus get another tile, or another source, than a single token. Raises UnsupportedError for an
        optional kernel that the device does not offer with these constants or sizes.
        """

    def compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> Kernel:
        """Compile a kernel with its semantic constants and a tuning returned by `tuning`.

        Raises UnsupportedError if the device lacks the kernel, KernelCompileError with the compiler's log if the build
        fails.
        """

    def release(self, kernel: Kernel) -> None:
        """Free a compiled kernel; recordings that launch it can only be closed."""

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        """Queue one kernel.

        views: in the order of kernel.spec.bindings, then the workspace if kernel.tuning has one. Two views may overlap
        only if both are read-only. params: the result of kernel.spec.pack(...). A grid with a 0 runs nothing.

        Raises ValueError before anything runs if they do not fit the kernel (`bitnet_hal.checks.check_launch`).
        """

    def record(self) -> AbstractContextManager[Recording]:
        """Record the launches of the `with` block instead of running them.

        Uploads, downloads, copies, allocations and compilations inside it take effect immediately; `free`, `release`,
        `replay`, `synchronize` and a nested `record` raise ValueError. If the block raises, nothing is recorded.
        """

    def replay(self, recording: Recording) -> None:
        """Queue all launches of a recording in order, with their recorded views and parameters."""

    def synchronize(self) -> None:
        """Wait until everything queued has finished."""

    def close(self) -> None:
        """Free everything, even after the device was lost. May be called twice."""


class Backend(Protocol):
    """A driver API. Constructing it loads no driver.

    It may have an attribute `rank`, an int: its preference under `auto`, higher is better. `discovery.known` has the
    ranks of known backends.
    """

    @property
    def name(self) -> str:
        """The name of the entry point: "cuda", "opencl", ..."""

    @property
    def api(self) -> tuple[int, int]:
        """The (major, minor) of the HAL that the plugin was written for: a literal, never imported."""

    def devices(self) -> Sequence[DeviceInfo]:
        """Load the driver and list the devices. Raises BackendUnavailableError with the reason and the fix."""

    def open(self, index: int) -> Device:
        """Open the device with this `DeviceInfo.index`. Raises DeviceNotFoundError if there is none.

        Indexes need not be consecutive: a device that a plugin skips (too old, say) keeps its number.
        """

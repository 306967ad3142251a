"""The optional features of a device: their names, and the protocol of each one that adds methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from bitnet_hal.device import Device, Kernel, Recording, Tuning, View

if TYPE_CHECKING:
    from bitnet_hal.kernels.spec import KernelSpec

FEATURES = frozenset(
    {
        "timings",
        "tunings",
        "compile-ahead",
        "async-readback",
        "replay-many",
        "peer-copy",
        "lm-head-int8",
        "refined-as-dense",
        "batch-invariant",
        "invariant-tunings",
        "sensors",
        "kernel-resources",
    }
)
"""Optional features that a device may list in DeviceInfo.features:

- "timings": it has `timings(recording)`;
- "tunings": it has `tunings(spec, constants, params)`;
- "compile-ahead": it has `compile_ahead(spec, constants, tuning)`;
- "async-readback": it has `read_async(view)`;
- "replay-many": it has `replay_many(recording, times)`;
- "peer-copy": it has `mark()` and `copy_from(other, src, dst, mark)`, for the devices in DeviceInfo.peers;
- "sensors": it has `sensors()`;
- "kernel-resources": it has `kernel_resources(kernel)`;
- "lm-head-int8": approximate logits (kernels/lm_head_int8.py) were measured to save time on it, so core makes the int8
  copy of the head by default;
- "refined-as-dense": in batch-invariant launches, refine_logits computes exact logits with the bits of matmul_dense, so
  that the option `deterministic` can use the int8 copy;
- "batch-invariant": rows are batch-invariant with each launch's own tuning, and no fused kernel changes that, so draft
  tokens can be verified together;
- "invariant-tunings": it has `invariant_tuning(spec, constants, params)`.

Unknown names, here and among the kernels, are ignored: a plugin may be newer than core."""


class TimedDevice(Device, Protocol):
    """A device with the feature "timings"."""

    def timings(self, recording: Recording) -> Sequence[tuple[str, float]]:
        """Replay once and return (kernel name, seconds) of every launch, in order."""


class TunableDevice(Device, Protocol):
    """A device with the feature "tunings"."""

    def tunings(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> Sequence[Tuning]:
        """Return the tunings that `bitnet tune` measures, the result of `tuning` first; all compute correct results.

        Core passes the fastest one to `compile` from then on. Raises the same errors as `tuning`.
        """


class InvariantDevice(Device, Protocol):
    """A device with the feature "invariant-tunings"."""

    def invariant_tuning(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> Tuning:
        """Return a launch's tuning with which a row gets the same bits as with that of any other number of rows, up to
        the kernel's `DeviceInfo.batch_invariant_rows`.

        Without this feature, such launches use the result of `tuning` for the declared number of rows. Raises the same
        errors as `tuning`; if it raises UnsupportedError for some numbers of declared rows, it does so for all.
        """


class AheadCompilingDevice(Device, Protocol):
    """A device with the feature "compile-ahead"."""

    def compile_ahead(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> None:
        """Start to compile a kernel in another thread. The next `compile` with the same arguments waits for it, and
        raises its errors."""


SENSORS = {"temperature": "C", "clock": "MHz", "memory_clock": "MHz", "power": "W"}
"""The readings of `SensorDevice.sensors`, with their units."""


class SensorDevice(Device, Protocol):
    """A device with the feature "sensors"."""

    def sensors(self) -> Mapping[str, float]:
        """Return the present readings by their names in SENSORS, without those that the driver does not report."""


KERNEL_RESOURCES = {
    "registers": "of a work-item",
    "private_bytes": "of a work-item in memory: spilled registers and arrays",
    "shared_bytes": "of a workgroup",
    "subgroup": "work-items of a subgroup",
    "occupancy": "share of a multiprocessor's work-items, 0 to 1, that its resources allow",
}
"""The results of `KernelResourcesDevice.kernel_resources`, with their meanings."""


class KernelResourcesDevice(Device, Protocol):
    """A device with the feature "kernel-resources"."""

    def kernel_resources(self, kernel: Kernel) -> Mapping[str, float]:
        """Return the resources of a compiled kernel by their names in KERNEL_RESOURCES, without those that the driver
        does not report."""


MAX_ASYNC_READ = 1 << 17
"""Maximum bytes of `AsyncReadbackDevice.read_async`."""


class AsyncReadbackDevice(Device, Protocol):
    """A device with the feature "async-readback"."""

    def read_async(self, src: View) -> Callable[[memoryview], None]:
        """Queue a copy of `src`, at most MAX_ASYNC_READ bytes, to the host.

        The returned function waits for it and copies it to writable memory of src.nbytes bytes. It waits only for work
        queued before this call. At most two readbacks may be outstanding.
        """


class RepeatingDevice(Device, Protocol):
    """A device with the feature "replay-many"."""

    def replay_many(self, recording: Recording, times: int) -> None:
        """Queue a recording `times` >= 1 times, like `times` calls of `replay`."""


MAX_MARKS = 16
"""Maximum valid marks of a device; a new one invalidates the oldest."""


class PeerCopyDevice(Device, Protocol):
    """A device with the feature "peer-copy"."""

    def mark(self) -> object:
        """Return a mark after all work queued so far, for `copy_from` of a peer.

        It stays valid until MAX_MARKS later marks exist.
        """

    def copy_from(self, other: Device, src: View, dst: View, mark: object) -> None:
        """Queue a copy of `src`, on a device among `info.peers`, to `dst` on this one, of the same size.

        It begins once the other device has finished the work before its `mark`; later work of this device begins after
        it. The other device does not wait for it: the caller must not overwrite `src` before it is done. Raises
        UnsupportedError for a device that is not a peer.
        """

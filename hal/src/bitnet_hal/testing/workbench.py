"""The device under test, and the operations on it that the rules share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bitnet_hal.device import Backend, Buffer, Device, DeviceInfo, Kernel, View, whole
from bitnet_hal.errors import KernelCompileError, UnsupportedError
from bitnet_hal.kernels.spec import Constants, KernelSpec, Params
from bitnet_hal.kernels.types import Grid
from bitnet_hal.launcher import Launcher, PreparedKernel
from bitnet_hal.testing.cases.case import SENTINEL, Array, Arrays, Case, CaseLaunch

GUARD = 256
"""Minimum guard bytes before and after every operand; more if the device's alignment requires it."""


@dataclass(frozen=True)
class Prepared:
    """A compiled launch with its operands on the device."""

    compiled: PreparedKernel
    grid: Grid
    views: dict[str, View]
    params: bytes

    @property
    def kernel(self) -> Kernel:
        return self.compiled.kernel

    @property
    def bound(self) -> list[View]:
        """Return the views in binding order, then the workspace if the kernel has one."""
        workspace = self.compiled.workspace
        return [*self.views.values(), *([whole(workspace)] if workspace else [])]

    def run(self, device: Device) -> None:
        """Run the launch, or add it to the current recording."""
        device.launch(self.kernel, self.grid, self.bound, self.params)


class Bench:
    """A device that is opened on first use, with a cache of compiled kernels and the buffers of the current rule."""

    def __init__(self, backend: Backend, index: int, info: DeviceInfo) -> None:
        self.backend = backend
        self.index = index
        self.info = info
        self._launcher: Launcher | None = None
        self._buffers: list[Buffer] = []

    @property
    def device(self) -> Device:
        """Return the device, opening it on first use."""
        return self.launcher.device

    @property
    def launcher(self) -> Launcher:
        """Return the launcher of the device."""
        if self._launcher is None:
            self._launcher = Launcher(self.backend.open(self.index))
        return self._launcher

    def second(self) -> Bench:
        """Return another bench on the same device."""
        return Bench(self.backend, self.index, self.info)

    def close(self) -> None:
        self._buffers.clear()
        if self._launcher is not None:
            self._launcher.device.close()
            self._launcher = None

    def tidy(self) -> None:
        """Free the buffers that the last rule allocated."""
        while self._buffers:
            self.device.free(self._buffers.pop())

    def alloc(self, nbytes: int) -> Buffer:
        """Allocate a buffer that `tidy` frees."""
        buffer = self.device.alloc(nbytes)
        self._buffers.append(buffer)
        return buffer

    def put(self, array: Array) -> View:
        """Upload `array` and return its view, with guard bytes on both sides."""
        guard = max(GUARD, self.info.alignment)
        contents = np.full(guard + array.nbytes + guard, SENTINEL, dtype=np.uint8)
        contents[guard : guard + array.nbytes] = array.reshape(-1).view(np.uint8)
        buffer = self.alloc(contents.size)
        self.device.upload(whole(buffer), contents.data)
        return View(buffer, guard, array.nbytes)

    def write(self, view: View, array: Array) -> None:
        """Upload an array to a view."""
        self.device.upload(view, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def read(self, view: View) -> npt.NDArray[np.uint8]:
        """Return the bytes of a view."""
        out = np.empty(view.nbytes, dtype=np.uint8)
        self.device.download(view, out.data)
        return out

    def take(self, what: str, view: View, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return the contents of a view made by `put`. Raises AssertionError if its guard bytes changed."""
        contents = self.read(whole(view.buffer))
        end = view.offset + view.nbytes
        assert (contents[: view.offset] == SENTINEL).all(), f"{what}: bytes before the operand were overwritten"
        assert (contents[end:] == SENTINEL).all(), f"{what}: bytes past the end of the operand were overwritten"
        return contents[view.offset : end].view(dtype)

    def compiled(self, spec: KernelSpec, constants: Constants, params: Params) -> tuple[PreparedKernel, Grid]:
        """Return the kernel and grid that the launcher uses for these constants and parameters.

        Skips the rule if the device does not offer the kernel or cannot compile it; `test_kernel_is_offered` fails for
        the latter.
        """
        try:
            return self.launcher.compiled(spec, params, constants)
        except (UnsupportedError, KernelCompileError) as exc:
            pytest.skip(f"{spec.name} is not offered: {exc.message}")

    def prepare(self, spec: KernelSpec, launch: CaseLaunch, bound: Mapping[str, View] | None = None) -> Prepared:
        """Upload the operands, except those that `bound` holds already, and compile the kernel."""
        compiled, grid = self.compiled(spec, launch.constants, launch.params)
        bound = bound or {}
        views = {b.name: bound.get(b.name) or self.put(launch.arrays[b.name]) for b in spec.bindings}
        return Prepared(compiled, grid, views, spec.pack(launch.params))

    def results(self, case: Case, launch: CaseLaunch, prepared: Prepared) -> Arrays:
        """Return every binding after the launch. Raises AssertionError if guard bytes or read-only operands changed."""
        arrays = {}
        for binding in case.spec.bindings:
            before = launch.arrays[binding.name]
            after = self.take(f"{case.id}: {binding.name}", prepared.views[binding.name], before.dtype)
            if binding.access == "r":
                same = before.tobytes() == after.tobytes()
                assert same, f"{case.id}: read-only operand {binding.name} was changed"
            arrays[binding.name] = after
        return arrays

    def run(self, case: Case) -> tuple[CaseLaunch, Arrays]:
        """Launch a case once; return its inputs and every binding afterwards."""
        launch = case.launch()
        prepared = self.prepare(case.spec, launch)
        prepared.run(self.device)
        return launch, self.results(case, launch, prepared)

"""Errors: the right class with the right words, and a device that works afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from bitnet_hal.device import Device, View
from bitnet_hal.errors import DeviceNotFoundError, GpuError, KernelCompileError, UnsupportedError
from bitnet_hal.kernels.base import MATMUL_TERNARY
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import ITEM_BYTES
from bitnet_hal.testing.cases.registry import cases_of
from bitnet_hal.testing.rules.recordings import count, counter
from bitnet_hal.testing.workbench import Bench

Failure = tuple[str, Callable[[], object], type[GpuError]]
"""(name, a call that raises, the class it must raise)."""


class ErrorRules:
    """A plugin shows its own failures through two hooks; the other rules need none."""

    def compile_broken_source(self, device: Device) -> None:
        """Override: compile a kernel source that the compiler refuses. The rule expects KernelCompileError."""
        pytest.skip("the test class does not override compile_broken_source()")

    def failures(self) -> Sequence[Failure]:
        """Override: calls that raise the native failures of the plugin's error table, and the class of each."""
        return ()

    def test_a_source_that_does_not_compile_gives_the_log(self, bench: Bench) -> None:
        """KernelCompileError with the kernel's name and the compiler's text."""
        with pytest.raises(KernelCompileError) as caught:
            self.compile_broken_source(bench.device)
        assert caught.value.kernel, "the error does not name the kernel"
        assert caught.value.log.strip(), "the error carries no compiler log"
        _still_works(bench)

    def test_native_failures_have_class_code_and_hint(self) -> None:
        """Each native status becomes its class, with its native name, the operation and what to do."""
        failures = self.failures()
        if not failures:
            pytest.skip("the test class does not override failures()")
        for name, call, kind in failures:
            with pytest.raises(GpuError) as caught:
                call()
            error = caught.value
            assert type(error) is kind, f"{name} became {type(error).__name__}, not {kind.__name__}"
            assert error.code, f"{name}: the error has no native code"
            assert error.operation, f"{name}: the error does not say what was tried"
            assert error.hint, f"{name}: the error has no hint"

    def test_opening_a_device_that_is_not_there(self, bench: Bench) -> None:
        """DeviceNotFoundError."""
        for index in (-1, 1000):
            with pytest.raises(DeviceNotFoundError):
                bench.backend.open(index)

    def test_a_kernel_outside_the_catalogue_is_unsupported(self, bench: Bench) -> None:
        """UnsupportedError."""
        unknown = dataclasses.replace(MATMUL_TERNARY, name="no_such_kernel")
        with pytest.raises(UnsupportedError):
            bench.device.compile(unknown, {"ADD": 0}, counter(bench).kernel.tuning)
        _still_works(bench)

    @pytest.mark.parametrize("constants", [{"ADD": 2}, {}])
    def test_semantic_constants_are_checked(self, bench: Bench, constants: dict[str, int]) -> None:
        """ValueError for a value that the catalogue does not list, and for a missing one."""
        ones = counter(bench)
        with pytest.raises(ValueError):
            bench.device.compile(MATMUL_TERNARY, constants, ones.kernel.tuning)
        _still_works(bench)

    def test_a_compiled_kernel_knows_what_it_is(self, bench: Bench) -> None:
        """spec, constants and tuning."""
        ones = counter(bench)
        assert ones.kernel.spec is MATMUL_TERNARY
        assert dict(ones.kernel.constants) == {"ADD": 1}
        assert set(ones.kernel.tuning.tile) == set(MATMUL_TERNARY.tuning)

    @pytest.mark.parametrize("fault", ["missing-view", "extra-view", "short-params", "long-params", "unaligned-view"])
    def test_a_launch_that_does_not_fit_is_refused(self, bench: Bench, fault: str) -> None:
        """ValueError before anything runs."""
        ones = counter(bench)
        views, params = ones.bound, ones.params
        if fault == "missing-view":
            views.pop()
        elif fault == "extra-view":
            views.append(views[0])
        elif fault == "unaligned-view":
            y = ones.views["y"]
            views[len(ones.views) - 1] = View(y.buffer, y.offset + bench.info.alignment // 2, y.nbytes)
        params = {"short-params": params[:-4], "long-params": params + bytes(4)}.get(fault, params)
        with pytest.raises(ValueError):
            bench.device.launch(ones.kernel, ones.grid, views, params)
        assert count(bench, ones) == 0
        _still_works(bench)

    def test_written_views_that_overlap_are_refused(self, bench: Bench) -> None:
        """ValueError where a view that is written shares a byte with another; two that are read may share all."""
        ones = counter(bench, rows=5 + bench.info.alignment // 20)  # as many scales of rows as of columns, at least
        y, scale = ones.views["y"], ones.views["scale"]
        for offset in (0, bench.info.alignment):
            shared = View(y.buffer, y.offset + offset, scale.nbytes)
            with pytest.raises(ValueError):
                dataclasses.replace(ones, views={**ones.views, "scale": shared}).run(bench.device)
        assert count(bench, ones) == 0
        part = View(scale.buffer, scale.offset, ones.views["wscale"].nbytes)
        dataclasses.replace(ones, views={**ones.views, "wscale": part}).run(bench.device)
        assert count(bench, ones) == 1, "views that are only read may overlap"

    def test_a_grid_beyond_the_largest_is_refused(self, bench: Bench) -> None:
        """ValueError before anything runs, in each dimension that DeviceInfo.max_grid limits."""
        ones = counter(bench)
        limits = [(axis, limit) for axis, limit in enumerate(bench.info.max_grid) if limit]
        if not limits:
            pytest.skip("the device names no largest grid")
        for axis, limit in limits:
            grid = [*ones.grid]
            grid[axis] = limit + 1
            with pytest.raises(ValueError):
                bench.device.launch(ones.kernel, (grid[0], grid[1], grid[2]), ones.bound, ones.params)
        assert count(bench, ones) == 0
        _still_works(bench)

    def test_views_that_are_too_short_are_refused(self, bench: Bench, kernel: str) -> None:
        """ValueError before anything runs, for every binding: the catalogue says what a launch needs."""
        launch = next(launch for case in cases_of(kernel) if (launch := case.launch()).params.get("rows", 2) > 1)
        spec = CATALOGUE[kernel]
        prepared = bench.prepare(spec, launch)
        for binding in spec.bindings:
            nbytes = binding.nbytes(launch.params, launch.constants) - ITEM_BYTES[binding.dtype]
            if nbytes <= 0:  # no view is that short
                continue
            view = prepared.views[binding.name]
            views = {**prepared.views, binding.name: View(view.buffer, view.offset, nbytes)}
            with pytest.raises(ValueError):
                dataclasses.replace(prepared, views=views).run(bench.device)
        for name, before in launch.arrays.items():
            assert bench.take(name, prepared.views[name], before.dtype).tobytes() == before.tobytes()
        _still_works(bench)

    def test_a_freed_buffer_cannot_be_used(self, bench: Bench) -> None:
        """ValueError from transfers."""
        buffer = bench.device.alloc(64)
        bench.device.free(buffer)
        with pytest.raises(ValueError):
            bench.write(View(buffer, 0, 64), np.zeros(64, dtype=np.uint8))
        with pytest.raises(ValueError):
            bench.read(View(buffer, 0, 64))

    def test_a_device_may_be_closed_twice(self, bench: Bench) -> None:
        """The second time does nothing."""
        device = bench.backend.open(bench.index)
        device.close()
        device.close()


def _still_works(bench: Bench) -> None:
    ones = counter(bench)
    ones.run(bench.device)
    assert count(bench, ones) == 1, "the device no longer works after the error"

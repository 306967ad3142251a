"""Rules about errors: the exception's class and text, and a device that still works afterwards."""

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
"""(name, a call that raises, the exception class that it must raise)."""


class ErrorRules:
    """Rules about errors. A plugin provides its own failures through two hooks; the other rules need none."""

    def compile_broken_source(self, device: Device) -> None:
        """Override: compile a kernel source that the compiler rejects. The rule expects KernelCompileError."""
        pytest.skip("the test class does not override compile_broken_source()")

    def failures(self) -> Sequence[Failure]:
        """Override: return calls that raise the native failures in the plugin's error table, each with its class."""
        return ()

    def test_a_source_that_does_not_compile_gives_the_log(self, bench: Bench) -> None:
        """KernelCompileError must hold the kernel's name and the compiler's log."""
        with pytest.raises(KernelCompileError) as caught:
            self.compile_broken_source(bench.device)
        assert caught.value.kernel, "the error does not name the kernel"
        assert caught.value.log.strip(), "the error carries no compiler log"
        _still_works(bench)

    def test_native_failures_have_class_code_and_hint(self) -> None:
        """Each native status must become its exception class, with native name, operation and hint."""
        failures = self.failures()
        if not failures:
            pytest.skip("the test class does not override failures()")
        for name, call, kind in failures:
            with pytest.raises(GpuError) as caught:
                call()
            error = caught.value
            assert type(error) is kind, f"{name} became {type(error).__name__}, not {kind.__name__}"
            assert error.code, f"{name}: the error has no native code"
            assert error.operation, f"{name}: the error has no operation"
            assert error.hint, f"{name}: the error has no hint"

    def test_opening_a_device_that_is_not_there(self, bench: Bench) -> None:
        """`Backend.open` must raise DeviceNotFoundError for an index that is not listed."""
        for index in (-1, 1000):
            with pytest.raises(DeviceNotFoundError):
                bench.backend.open(index)

    def test_a_kernel_outside_the_catalogue_is_unsupported(self, bench: Bench) -> None:
        """`compile` must raise UnsupportedError for an unknown kernel."""
        unknown = dataclasses.replace(MATMUL_TERNARY, name="no_such_kernel")
        with pytest.raises(UnsupportedError):
            bench.device.compile(unknown, {"ADD": 0}, counter(bench).kernel.tuning)
        _still_works(bench)

    @pytest.mark.parametrize("constants", [{"ADD": 2}, {}])
    def test_semantic_constants_are_checked(self, bench: Bench, constants: dict[str, int]) -> None:
        """`compile` must raise ValueError for a missing constant, or a value that the catalogue does not list."""
        ones = counter(bench)
        with pytest.raises(ValueError):
            bench.device.compile(MATMUL_TERNARY, constants, ones.kernel.tuning)
        _still_works(bench)

    def test_a_compiled_kernel_knows_what_it_is(self, bench: Bench) -> None:
        """A compiled kernel must have its spec, constants and tuning as attributes."""
        ones = counter(bench)
        assert ones.kernel.spec is MATMUL_TERNARY
        assert dict(ones.kernel.constants) == {"ADD": 1}
        assert set(ones.kernel.tuning.tile) == set(MATMUL_TERNARY.tuning)

    @pytest.mark.parametrize("fault", ["missing-view", "extra-view", "short-params", "long-params", "unaligned-view"])
    def test_a_launch_that_does_not_fit_is_refused(self, bench: Bench, fault: str) -> None:
        """`launch` must raise ValueError for a wrong number of views, wrong parameter bytes or an unaligned view,
        and run nothing."""
        ones = counter(bench)
        views = ones.bound
        params = ones.params
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
        """`launch` must raise ValueError if a written view overlaps another; views that are only read may overlap."""
        ones = counter(bench, rows=5 + bench.info.alignment // 20)  # at least as many row scales as column scales
        y = ones.views["y"]
        scale = ones.views["scale"]
        for offset in (0, bench.info.alignment):
            shared = View(y.buffer, y.offset + offset, scale.nbytes)
            with pytest.raises(ValueError):
                dataclasses.replace(ones, views={**ones.views, "scale": shared}).run(bench.device)
        assert count(bench, ones) == 0
        part = View(scale.buffer, scale.offset, ones.views["wscale"].nbytes)
        dataclasses.replace(ones, views={**ones.views, "wscale": part}).run(bench.device)
        assert count(bench, ones) == 1, "views that are only read must be allowed to overlap"

    def test_a_grid_beyond_the_largest_is_refused(self, bench: Bench) -> None:
        """`launch` must raise ValueError for a grid beyond DeviceInfo.max_grid in any dimension, and run nothing."""
        ones = counter(bench)
        limits = [(axis, limit) for axis, limit in enumerate(bench.info.max_grid) if limit]
        if not limits:
            pytest.skip("the device has no grid limit")
        for axis, limit in limits:
            grid = [*ones.grid]
            grid[axis] = limit + 1
            with pytest.raises(ValueError):
                bench.device.launch(ones.kernel, (grid[0], grid[1], grid[2]), ones.bound, ones.params)
        assert count(bench, ones) == 0
        _still_works(bench)

    def test_views_that_are_too_short_are_refused(self, bench: Bench, kernel: str) -> None:
        """`launch` must raise ValueError if any view is shorter than the catalogue requires, and run nothing."""
        launch = next(launch for case in cases_of(kernel) if (launch := case.launch()).params.get("rows", 2) > 1)
        spec = CATALOGUE[kernel]
        prepared = bench.prepare(spec, launch)
        for binding in spec.bindings:
            nbytes = binding.nbytes(launch.params, launch.constants) - ITEM_BYTES[binding.dtype]
            if nbytes <= 0:  # a view has at least one byte
                continue
            view = prepared.views[binding.name]
            views = {**prepared.views, binding.name: View(view.buffer, view.offset, nbytes)}
            with pytest.raises(ValueError):
                dataclasses.replace(prepared, views=views).run(bench.device)
        for name, before in launch.arrays.items():
            assert bench.take(name, prepared.views[name], before.dtype).tobytes() == before.tobytes()
        _still_works(bench)

    def test_a_freed_buffer_cannot_be_used(self, bench: Bench) -> None:
        """Transfers must raise ValueError for a freed buffer."""
        buffer = bench.device.alloc(64)
        bench.device.free(buffer)
        with pytest.raises(ValueError):
            bench.write(View(buffer, 0, 64), np.zeros(64, dtype=np.uint8))
        with pytest.raises(ValueError):
            bench.read(View(buffer, 0, 64))

    def test_a_device_may_be_closed_twice(self, bench: Bench) -> None:
        """A second `close` must do nothing."""
        device = bench.backend.open(bench.index)
        device.close()
        device.close()


def _still_works(bench: Bench) -> None:
    ones = counter(bench)
    ones.run(bench.device)
    assert count(bench, ones) == 1, "the device no longer works after the error"

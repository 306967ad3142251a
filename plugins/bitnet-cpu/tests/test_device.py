"""Parts that the conformance kit does not test: code paths, native errors, freed memory."""

from __future__ import annotations

import numpy as np
import pytest
from bitnet_cpu import _native
from bitnet_cpu.describe import active_kernel, usable_paths
from bitnet_cpu.device import CpuDevice
from bitnet_cpu.errors import native
from bitnet_hal.device import TransferMode, Tuning, View, whole
from bitnet_hal.errors import LaunchError, UnsupportedError, UsageError
from bitnet_hal.kernels.base import EMBED_ROWS, RMS_NORM


def norm_launch(device: CpuDevice, width: int = 8) -> tuple[list[View], bytes]:
    sizes = (4 * width, 4, 4 * width, 4 * width)
    return [whole(device.alloc(size)) for size in sizes], RMS_NORM.pack({"rows": 1, "width": width, "eps": 1e-5})


def test_info_names_the_code_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BITNET_CPU_KERNEL", raising=False)
    device = CpuDevice()
    assert device.info.extra["active_kernel"] == usable_paths()[0] == active_kernel()
    assert device.info.transfer is TransferMode.UNIFIED
    assert device.info.name


def test_variable_forces_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_CPU_KERNEL", "portable")
    assert CpuDevice().info.extra["active_kernel"] == "portable"


def test_path_that_the_cpu_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_CPU_KERNEL", "abacus")
    with pytest.raises(UsageError, match=r"abacus.*portable"):
        CpuDevice()


def test_the_native_module_checks_sizes_itself() -> None:
    device = CpuDevice()
    views, params = norm_launch(device)
    views[3] = views[3].part(0, 28)
    kernel, parts = device.compile(RMS_NORM, {}, Tuning()), [(v.buffer.memory, v.offset, v.nbytes) for v in views]
    with pytest.raises(LaunchError, match="y holds 28 bytes, the launch needs 32"), native("launch"):
        _native.make_launch(kernel.compiled, (1, 1, 1), parts, params)


def test_tile_that_splits_blocks_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="TILE_N"):
        CpuDevice().compile(EMBED_ROWS, {"DTYPE": 4}, Tuning({"TILE_N": 100}))


def test_wrapped_memory_is_used_in_place_and_read_only() -> None:
    device = CpuDevice()
    host = np.arange(16, dtype=np.float32)
    buffer = device.wrap(host.view(np.uint8).data)
    assert buffer is not None
    host[3] = 77
    out = np.empty_like(host)
    device.download(whole(buffer), out.view(np.uint8).data)
    assert out[3] == 77
    with pytest.raises(ValueError, match="read-only"):
        device.upload(whole(buffer), out.view(np.uint8).data)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_pool_size_gives_the_same(threads: int) -> None:
    device = CpuDevice(threads=threads)
    assert device.info.extra["threads"] == threads
    views, params = norm_launch(device, 640)
    x = np.linspace(-2, 3, 640, dtype=np.float32)
    for view, data in zip(views, (x, np.zeros(1, np.int32), np.ones(640, np.float32)), strict=False):
        device.upload(view, data.view(np.uint8).data)
    device.launch(device.compile(RMS_NORM, {}, Tuning()), (1, 1, 1), views, params)
    y = np.empty_like(x)
    device.download(views[3], y.view(np.uint8).data)
    np.testing.assert_allclose(y, x / np.sqrt(np.mean(x * x) + 1e-5), rtol=1e-5)

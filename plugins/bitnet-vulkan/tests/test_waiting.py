"""Bounded waiting: a timeout asks the device whether it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from bitnet_hal.device import whole
from bitnet_hal.errors import DeviceLostError, GpuTimeoutError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launcher import Launcher
from bitnet_vulkan.device import VulkanDevice
from bitnet_vulkan.driver import DEVICE_LOST, vk

NBYTES = 64 << 20


@pytest.fixture
def busy(device: VulkanDevice) -> Iterator[VulkanDevice]:
    """Yield a device with half a second of queued work and a timeout of a microsecond."""
    first, second = device.alloc(NBYTES), device.alloc(NBYTES)
    device.upload(whole(first), np.full(NBYTES, 7, np.uint8).data)
    device.synchronize()
    patient, device.timeout = device.timeout, 1e-6
    for _ in range(40):
        device.copy(whole(first), whole(second))
    yield device
    device.timeout = patient
    device._lost = False
    device.synchronize()
    content = np.empty(NBYTES, np.uint8)
    device.download(whole(second), content.data)  # the work went on, and the device is as good as before
    assert (content == 7).all()


def test_a_device_that_is_only_slow(busy: VulkanDevice) -> None:
    with pytest.raises(GpuTimeoutError, match="wait") as caught:
        busy.synchronize()
    assert "BITNET_GPU_TIMEOUT" in str(caught.value)


def test_timings_that_take_too_long_leave_nothing_behind(busy: VulkanDevice) -> None:
    launcher, shape = Launcher(busy), {"rows": 1, "width": 4, "eps": 1e-5}
    views = [whole(busy.alloc(16)) for _ in CATALOGUE["rms_norm"].bindings]
    recorded = launcher.record([launcher.prepare(CATALOGUE["rms_norm"], shape, tuple(views))])
    with pytest.raises(GpuTimeoutError):
        busy.timings(recorded.recording)
    kinds = [kind for kind, _ in busy._device._living]
    assert kinds.count("QueryPool") == 1, "its queries may still be written; it goes with the device"


def test_a_device_that_is_gone(busy: VulkanDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = vk().lib

    class Gone:
        """The driver, except that every fence reports a lost device."""

        def __getattr__(self, name: str) -> Any:
            return (lambda *_: DEVICE_LOST) if name == "vkGetFenceStatus" else getattr(driver, name)

    busy.flush()
    monkeypatch.setattr(vk(), "lib", Gone())
    with pytest.raises(DeviceLostError, match="VK_ERROR_DEVICE_LOST"):
        busy.synchronize()
    monkeypatch.undo()

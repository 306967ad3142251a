"""The memory of a device beside the models that are loaded."""

from __future__ import annotations

from collections.abc import Iterable

from bitnet_core.engine.serving import DescribedDevice
from bitnet_core.plan.memory import DeviceMemoryPlan
from bitnet_hal.plugin import DeviceInfo, DeviceType, TransferMode


def shortage(device: DescribedDevice, plan: DeviceMemoryPlan, beside: Iterable[tuple[DeviceInfo, int]]) -> int:
    """Return the bytes that a plan lacks on a device; 0 if it fits, or if the driver does not report free memory.

    beside: device and bytes of weights of the loaded models. Weights that are read from a mapped file count as free
    memory of the machine, although a model needs them there.
    """
    free = device.free_memory()
    if free < 0:
        return 0
    mapped = sum(
        weights for info, weights in beside if info.transfer is TransferMode.UNIFIED and same_memory(info, device.info)
    )
    return max(0, plan.total + mapped - free)


def same_memory(one: DeviceInfo, other: DeviceInfo) -> bool:
    """Return whether two devices share memory: that of one GPU, or that of the machine."""
    if DeviceType.GPU in (one.type, other.type):
        return one.request == other.request
    return True

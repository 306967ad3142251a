"""Order of preference of devices, and detection of cards that several backends list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.discovery.known import GPU_BACKENDS, INTEGRATED, KNOWN, OTHER_GPU, SOFTWARE
from bitnet_hal.discovery.registry import kernels_hash, registry
from bitnet_hal.tuning.measured import token_seconds

HARDWARE = frozenset({DeviceType.GPU, DeviceType.INTEGRATED})
"""Types of devices that are cards or chips, not programs on a CPU."""

_PCI_ADDRESS = re.compile(r"([0-9a-f]{4}:[0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


def rank(info: DeviceInfo) -> int:
    """Return the preference of a device before measurements; higher is better.

    A backend may set its own `rank`, except for software devices.
    """
    if info.type is DeviceType.SOFTWARE:
        return SOFTWARE
    own: int | None = None if info.fake else getattr(registry().backends.get(info.backend), "rank", None)
    if own is not None:
        return own
    if info.type is DeviceType.INTEGRATED:
        return INTEGRATED
    hardware = info.type in HARDWARE
    if info.backend in KNOWN and hardware == (info.backend in GPU_BACKENDS):
        return KNOWN[info.backend].rank
    return OTHER_GPU if hardware else SOFTWARE


def reason(info: DeviceInfo, seconds: Mapping[str, float]) -> str:
    """Explain the place of a device for people. seconds: `token_seconds` of the measured devices."""
    if info.type is DeviceType.SOFTWARE:
        return "a CPU behind a GPU's API ranks below the native CPU"
    if info.request in seconds:
        return f"measured: {1e3 * seconds[info.request]:.3g} ms per token (`bitnet tune`)"
    if rank(info) == INTEGRATED and info.type is DeviceType.INTEGRATED:
        return "shares the CPU's memory; run `bitnet tune` to measure whether it is faster than the CPU"
    return "by its backend's rank; not measured (`bitnet tune`)"


def in_order(devices: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """Sort devices, best first.

    The order is by rank; measured devices (`bitnet tune`) are sorted by speed among the positions they hold by rank.
    Software devices keep their position.
    """
    order = sorted(devices, key=lambda info: (-rank(info), info.backend, info.index))
    seconds = token_seconds((info for info in order if info.type is not DeviceType.SOFTWARE), kernels_hash)
    places = [at for at, info in enumerate(order) if info.request in seconds]
    quickest = sorted((order[at] for at in places), key=lambda info: seconds[info.request])
    for at, info in zip(places, quickest, strict=True):
        order[at] = info
    return order


def ranked(devices: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """Sort as `in_order`, keeping a card that several backends list only under the best of them."""
    kept: list[DeviceInfo] = []
    for info in in_order(devices):
        if info.type not in HARDWARE or not any(same_card(info, other) for other in kept):
            kept.append(info)
    return kept


def same_card(one: DeviceInfo, other: DeviceInfo) -> bool:
    """Return whether two backends list the same card. Two devices of one backend are always different."""
    if one.backend == other.backend:
        return one.index == other.index
    return bool(addresses(one) & addresses(other))


def addresses(info: DeviceInfo) -> set[str]:
    """Return the PCI addresses that a physical id may mean.

    For the card at 0000:00:06.0, some OpenCL drivers of NVIDIA report the slot as device and function (0x30), others as
    the device alone (6, which then reads 0000:00:00.6).
    """
    match = _PCI_ADDRESS.fullmatch(info.physical_id)
    if not match or info.backend != "opencl" or "nvidia" not in (info.vendor + info.name).lower():
        return {info.physical_id} - {""}
    place = match[1]
    device = int(match[2], 16)
    function = int(match[3])
    return {info.physical_id, f"{place}:{device * 8 + function:02x}.0"}

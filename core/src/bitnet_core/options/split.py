"""The devices of a split: `auto`, or devices in the order of the layers, each with its number of layers."""

from __future__ import annotations

import re

from bitnet_hal.discovery.request import DeviceRequest, parse_request
from bitnet_hal.errors import UsageError

AUTO = "auto"
_PART = re.compile(r"(.{1,80}):([0-9]{1,9})", re.ASCII)


def parse_split(text: str) -> list[tuple[DeviceRequest, int]]:
    """Parse a split such as cuda:0:20,cpu:10; [] for auto. Raises UsageError for any other text."""
    if text == AUTO:
        return []
    parts: list[tuple[DeviceRequest, int]] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or not int(match[2]):
            raise UsageError(
                f"'{part[:40]}' is not a part of a split: use a device and its number of layers, as in cuda:0:20, or "
                "auto for the whole split"
            )
        parts.append((parse_request(match[1]), int(match[2])))
    if len({str(request) for request, _ in parts}) < len(parts):
        raise UsageError(f"the split '{text[:80]}' names a device twice")
    return parts


def main_device(split: str | None, device: str | None) -> str | None:
    """Return the request for the device with the last layers: that of the split, else `device`.

    Raises UsageError if both name devices.
    """
    if split and device is not None and ("," in device or device == "all"):
        raise UsageError("a split and a list of devices exclude each other: each device of a list has the whole model")
    parts = parse_split(split) if split else []
    if parts and device is not None:
        raise UsageError("a split with devices excludes --device (device=): the split names all devices")
    return str(parts[-1][0]) if parts else device

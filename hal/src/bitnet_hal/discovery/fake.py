"""Fake GPUs for tests of device selection and of users' scripts: BITNET_GPU_FAKE=cuda,rocm.

A fake device computes with numpy and is marked by `DeviceInfo.fake`; receipts call its path "mock".
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from bitnet_hal import environment
from bitnet_hal.device import Device, DeviceInfo, DeviceType
from bitnet_hal.errors import StrictModeError, UsageError

log = logging.getLogger(__name__)


def fake_gpus() -> list[str] | None:
    """Return the names in BITNET_GPU_FAKE, [] to hide all GPUs, None for real devices.

    Raises StrictModeError under BITNET_STRICT_NO_FAKE_GPU. BITNET_STRICT_MODE ignores fakes with a warning.
    """
    text = os.environ.get("BITNET_GPU_FAKE")
    if text is None:
        return None
    names = [part.strip().lower() for part in text.split(",") if part.strip()]
    if "none" in names:
        if len(names) > 1:
            raise UsageError(f"BITNET_GPU_FAKE={text}: 'none' cannot be combined with other names")
        names = []
    if names and environment.flag("BITNET_STRICT_NO_FAKE_GPU"):
        raise StrictModeError(
            f"BITNET_GPU_FAKE={text} is refused because BITNET_STRICT_NO_FAKE_GPU is set. Unset one of the two"
        )
    if environment.strict_mode():
        log.warning("BITNET_GPU_FAKE=%s is ignored because BITNET_STRICT_MODE is set", text)
        return None
    return names


def fake_info(name: str) -> DeviceInfo:
    """Return the description of the fake device of backend `name`."""
    from bitnet_hal.reference.describe import numpy_info

    return replace(
        numpy_info(), backend=name, index=0, name=f"fake {name} device (numpy)", type=DeviceType.GPU, fake=True
    )


def open_fake(info: DeviceInfo) -> Device:
    """Open a numpy device with the description `info`."""
    from bitnet_hal.reference.device import NumpyDevice

    return NumpyDevice(info)

"""Stand-in GPUs for tests of selection and of other people's scripts: BITNET_GPU_FAKE=cuda,rocm.

A fake device computes with numpy, says so in its description (`DeviceInfo.fake`), and receipts call the path "mock".
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
    """Names in BITNET_GPU_FAKE as written, [] to hide every GPU, None for real devices.

    StrictModeError under BITNET_STRICT_NO_FAKE_GPU; ignored with a warning under BITNET_STRICT_MODE.
    """
    text = os.environ.get("BITNET_GPU_FAKE")
    if text is None:
        return None
    names = [part.strip().lower() for part in text.split(",") if part.strip()]
    if "none" in names:
        if len(names) > 1:
            raise UsageError(f"BITNET_GPU_FAKE={text}: 'none' stands alone")
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
    """What the stand-in for backend `name` shows of itself."""
    from bitnet_hal.reference.describe import numpy_info

    return replace(
        numpy_info(), backend=name, index=0, name=f"fake {name} device (numpy)", type=DeviceType.GPU, fake=True
    )


def open_fake(info: DeviceInfo) -> Device:
    """A numpy device described by `info`."""
    from bitnet_hal.reference.device import NumpyDevice

    return NumpyDevice(info)

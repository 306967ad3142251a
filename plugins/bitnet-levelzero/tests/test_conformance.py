"""The conformance kit on the Level Zero device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from bitnet_hal.device import Device
from bitnet_hal.errors import GpuError, LaunchError
from bitnet_hal.testing import BackendConformance


class TestConformance(BackendConformance):
    backend = "level-zero"

    def compile_broken_source(self, device: Device) -> None:
        from bitnet_levelzero import compile as module
        from bitnet_levelzero.device import LevelZeroDevice

        assert isinstance(device, LevelZeroDevice)
        broken = bytearray(module.archive()["rms_norm.GROUP256"])
        broken[len(broken) // 2 :] = bytes(len(broken) - len(broken) // 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "archive", lambda: {"broken.GROUP256": bytes(broken)})
            device._compiler.kernel("broken.GROUP256", 256)

    def failures(self) -> Sequence[tuple[str, Callable[[], object], type[GpuError]]]:
        from bitnet_levelzero.errors import RESULTS, check

        return [
            (row.name, partial(check, result, "test"), row.kind or LaunchError) for result, row in RESULTS.table.items()
        ]

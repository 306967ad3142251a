"""The kit's kernel and model rules on the code paths that this CPU can run but does not choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bitnet_core.testing.model import ModelRules
from bitnet_cpu.describe import cpu_info, usable_paths
from bitnet_cpu.device import CpuDevice
from bitnet_hal.device import Device, DeviceInfo
from bitnet_hal.testing.rules.kernels import KernelRules


@dataclass(frozen=True)
class ForcedBackend:
    """The cpu backend with another code path than its own choice."""

    path: str
    name: str = "cpu"
    api: tuple[int, int] = (1, 0)

    def devices(self) -> Sequence[DeviceInfo]:
        return [cpu_info(self.path)]

    def open(self, index: int) -> Device:
        return CpuDevice(self.path)


class PathRules(KernelRules, ModelRules):
    """The kit's rules whose result depends on the code path."""


for _path in usable_paths()[1:]:
    _name = "Test" + _path.title().replace("-", "")
    globals()[_name] = type(_name, (PathRules,), {"backend": ForcedBackend(_path)})

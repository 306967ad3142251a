"""Survey of this machine: backends, their devices and drivers, and why the others are ignored."""

from __future__ import annotations

from dataclasses import dataclass

from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.discovery.known import KNOWN
from bitnet_hal.discovery.order import ranked
from bitnet_hal.discovery.registry import registry
from bitnet_hal.discovery.selection import devices


@dataclass(frozen=True, slots=True)
class BackendState:
    """The state of one backend. version: of its package, "" if not installed. reason: why it has no device."""

    name: str
    version: str
    devices: tuple[DeviceInfo, ...] = ()
    reason: str = ""

    def summary(self) -> str:
        """Return one line for people."""
        if self.devices:
            shown = "; ".join(f"{info.request} {info.name} ({info.type.value}, {info.driver})" for info in self.devices)
            return f"{self.name} {self.version}: {shown}"
        return f"{self.name}{' ' if self.version else ''}{self.version}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Machine:
    """A survey. backends: the known ones, then others. preferred: the device that `auto` selects, a GPU or not."""

    backends: tuple[BackendState, ...]
    preferred: DeviceInfo

    @property
    def gpus(self) -> tuple[DeviceInfo, ...]:
        """All hardware GPUs; one that several backends list appears several times."""
        hardware = (DeviceType.GPU, DeviceType.INTEGRATED)
        return tuple(info for state in self.backends for info in state.devices if info.type in hardware)

    def summary(self) -> str:
        """Return a line about `auto` and one per backend."""
        lines = [f"auto selects {self.preferred.request} ({self.preferred.name})"]
        return "\n".join([*lines, *(state.summary() for state in self.backends)])


def probe() -> Machine:
    """Survey all installed backends. Each driver is asked once per process."""
    present = devices()
    found = registry()
    left_out = {entry.name: entry for entry in found.quarantined}
    states = []
    for name in dict.fromkeys([*KNOWN, *found.backends, *left_out]):
        own = tuple(info for info in present if info.backend == name)
        entry = left_out.get(name)
        version = entry.version if entry else found.origin(name)[1] if name in found.backends else ""
        reason = "" if own else entry.reason if entry else "hidden" if name in found.backends else "not installed"
        states.append(BackendState(name, version, own, reason))
    return Machine(tuple(states), ranked(present)[0])

"""What a device is asked to launch, checked, and what it keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from bitnet_hal.device import Buffer, Kernel, Tuning
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.kernels.types import Grid

B = TypeVar("B", bound=Buffer)
K = TypeVar("K", bound=Kernel)


@dataclass(frozen=True, eq=False, slots=True)
class CompiledKernel:
    """What every `Kernel` has; a plugin's adds what the driver made of it."""

    spec: KernelSpec
    constants: Mapping[str, int]
    tuning: Tuning


class Bound(NamedTuple, Generic[B]):
    """A range of one of the device's own buffers, in bytes."""

    buffer: B
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class BoundLaunch(Generic[B, K]):
    """One kernel with all that it is launched with. bound: as its bindings, then the workspace where it has one."""

    kernel: K
    grid: Grid
    bound: tuple[Bound[B], ...]
    params: bytes


@dataclass(eq=False, slots=True)
class LaunchRecording(Generic[B, K]):
    """Launches kept, and what `_record` made of them: a graph, a command buffer, prepared calls."""

    forget: Callable[[LaunchRecording[B, K]], None]  # by the device that made it
    launches: tuple[BoundLaunch[B, K], ...] = ()
    native: Any = None
    uses: frozenset[int] = frozenset()  # ids of its buffers and kernels
    stale: bool = False  # one of these is gone

    def close(self) -> None:
        """Free what the driver holds for it."""
        self.forget(self)

"""Validated launches and recordings, in the form that `BaseDevice` passes to a plugin's methods."""

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
    """A kernel with the attributes of `Kernel`; a plugin's class adds the driver's handles."""

    spec: KernelSpec
    constants: Mapping[str, int]
    tuning: Tuning


class Bound(NamedTuple, Generic[B]):
    """A byte range of one of the device's own buffers."""

    buffer: B
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class BoundLaunch(Generic[B, K]):
    """One validated launch. bound: in the order of the kernel's bindings, then the workspace if it has one."""

    kernel: K
    grid: Grid
    bound: tuple[Bound[B], ...]
    params: bytes


@dataclass(eq=False, slots=True)
class LaunchRecording(Generic[B, K]):
    """Recorded launches. native: the result of `_record`: a graph, a command buffer, prepared calls."""

    forget: Callable[[LaunchRecording[B, K]], None]  # frees this recording on its device
    launches: tuple[BoundLaunch[B, K], ...] = ()
    native: Any = None
    uses: frozenset[int] = frozenset()  # ids of the buffers and kernels it uses
    stale: bool = False  # one of these was freed
    work: float = 0.0  # multiply-adds of the launches

    def close(self) -> None:
        """Free the driver's resources. May be called twice."""
        self.forget(self)

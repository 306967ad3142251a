"""Launches with their arguments set, kept for replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyopencl as cl
from bitnet_core.kernels.spec import KernelSpec

Size = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class OpenCLKernel:
    """A built program with one kernel. `direct` serves launches that are not recorded.

    parts: memory for what groups hand to each other, where the source has an argument for it.
    """

    spec: KernelSpec
    constants: Mapping[str, int]
    program: cl.Program
    entry: str
    direct: cl.Kernel
    parts: cl.Buffer | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """A cl_kernel whose arguments are set and stay so."""

    source: OpenCLKernel
    kernel: cl.Kernel
    items: Size
    group: Size


@dataclass(eq=False, slots=True)
class OpenCLRecording:
    """Enqueued one by one on the in-order queue: with pyopencl about 2-4 us each, and nothing is created."""

    launches: list[Launch] = field(default_factory=list)

    def close(self) -> None:
        """Forget the launches."""
        self.launches.clear()

"""DeviceInfo of the CPU, and its code paths."""

from __future__ import annotations

import os
import platform
from functools import cache
from types import MappingProxyType

import psutil
from bitnet_hal.device import ANY_ROWS
from bitnet_hal.discovery.known import install_command
from bitnet_hal.errors import BackendUnavailableError, UsageError
from bitnet_hal.kernels.catalogue import CATALOGUE, DELTA_KERNELS, EXPERT_KERNELS
from bitnet_hal.plugin import DeviceInfo, DeviceType, TransferMode

from bitnet_cpu import __version__
from bitnet_cpu.tuning import PACKED_ROWS

VARIABLE = "BITNET_CPU_KERNEL"
BATCH_INVARIANT_ROWS = MappingProxyType(
    {
        **dict.fromkeys(CATALOGUE, ANY_ROWS),
        "matmul_ternary_block": PACKED_ROWS,
        "matmul_experts": PACKED_ROWS,
    }
)
"""The maximum rows of batch-invariant products with group scales: more rows use panels, with another order of sums."""
ALIGNMENT = 4
"""The alignment of views in bytes: loads may be unaligned, but f32 and i32 values lie at multiples of their size."""


def usable_paths() -> list[str]:
    """Return the code paths that this CPU runs, best first.

    Raises BackendUnavailableError if the native module does not load.
    """
    try:
        from bitnet_cpu import _native
    except ImportError as exc:
        raise BackendUnavailableError(
            f"the native module does not load: {exc}",
            backend="cpu",
            hint=f"Install it for this platform and Python: {install_command('bitnet-cpu')}; or use the numpy device",
        ) from exc
    return _native.paths()


def active_kernel() -> str:
    """Return the code path of a new device: BITNET_CPU_KERNEL, else the best.

    Raises UsageError if the CPU cannot run it.
    """
    usable = usable_paths()
    wanted = os.environ.get(VARIABLE)
    if wanted and wanted not in usable:
        raise UsageError(f"{VARIABLE} is '{wanted}', but this CPU runs {', '.join(usable)}")
    return wanted or usable[0]


@cache
def cpu_name() -> str:
    """Return the processor's name as the system reports it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cpu_info(path: str | None = None, threads: int | None = None) -> DeviceInfo:
    """Return the DeviceInfo of the CPU. path, threads: those of an open device; by default those of a new one."""
    from bitnet_cpu.threads import thread_count

    path = path or active_kernel()
    total = psutil.virtual_memory().total
    return DeviceInfo(
        backend="cpu",
        index=0,
        name=cpu_name(),
        type=DeviceType.CPU,
        driver=f"bitnet-cpu {__version__}",
        total_memory=total,
        max_allocation=total,
        max_binding=total,
        alignment=ALIGNMENT,
        transfer=TransferMode.UNIFIED,
        kernels=frozenset({"top_k", "pack_head", "approx_logits", "refine_logits", "window_attention"})
        | DELTA_KERNELS
        | EXPERT_KERNELS,
        features=frozenset({"timings", "tunings", "replay-many", "batch-invariant"}),
        batch_invariant_rows=BATCH_INVARIANT_ROWS,
        extra=MappingProxyType({"active_kernel": path, "threads": threads or thread_count()}),
    )

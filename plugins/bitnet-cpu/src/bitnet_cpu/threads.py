"""The number of threads, and the shared thread pools."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import psutil
from bitnet_hal.errors import UsageError

from bitnet_cpu import _native

VARIABLE = "BITNET_NUM_THREADS"
MOST = 1024


def cgroup_cores(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Return the CPU quota of this process's control groups in cores (v2, or v1's cpu controller), infinity without
    one."""
    quota = float("inf")
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return quota
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        folder = base / group.lstrip("/")
        for place in (folder, *folder.parents):
            quota = min(quota, _quota(place))
            if place == base:
                break
    return quota


def _quota(folder: Path) -> float:
    try:
        if (folder / "cpu.max").exists():
            limit, period = (folder / "cpu.max").read_text().split()
        else:
            limit = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return float(limit) / float(period) if limit not in ("max", "-1") else float("inf")
    except (OSError, ValueError, ZeroDivisionError):
        return float("inf")


def thread_count() -> int:
    """Return BITNET_NUM_THREADS, else the number of physical cores that this process may use within its cgroup's quota.

    Raises UsageError if the variable is not a number in 1..1024.
    """
    if text := os.environ.get(VARIABLE):
        if not text.isdecimal() or not 1 <= int(text) <= MOST:
            raise UsageError(f"{VARIABLE} is '{text}'. Use a number of threads, 1 to {MOST}")
        return int(text)
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    return max(1, int(min(cores, cgroup_cores())))


@cache
def pool(threads: int) -> _native.Pool:
    """Return the process's pool of that size, shared by all devices."""
    return _native.Pool(threads)

"""The number of threads, and the shared thread pools."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import psutil
from bitnet_hal.errors import UsageError, short

from bitnet_cpu import _native

VARIABLE = "BITNET_NUM_THREADS"
MOST = 1024
_NUMBER = re.compile("[0-9]{1,9}")


def cgroup_cores(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Return the CPU quota of this process's control groups (v2, or v1's cpu controller) in cores, infinity if none."""
    quota = float("inf")
    try:
        lines = own.read_text(errors="replace").splitlines()
    except OSError:
        return quota
    for line in lines:
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        for base in _mounts(root) if controllers else (root, root / "unified"):
            folder = base / group.lstrip("/")
            for place in (folder, *folder.parents):
                quota = min(quota, _quota(place))
                if place == base:
                    break
    return quota


def _mounts(root: Path) -> list[Path]:
    """Return the folders of v1's cpu controller.

    They are named "cpu", "cpu,cpuacct" or "cpuacct,cpu", not always as in /proc/self/cgroup.
    """
    try:
        return [folder for folder in root.iterdir() if "cpu" in folder.name.split(",")]
    except OSError:
        return []


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
    if text := os.environ.get(VARIABLE, "").strip():
        if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= MOST:
            raise UsageError(f"{VARIABLE} is {short(text)}. Use a number of threads, 1 to {MOST}")
        return int(text)
    return max(1, int(min(physical_cores(), cgroup_cores())))


def physical_cores(topology: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the physical cores that this process may use: two logical CPUs of one core count once."""
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    if not hasattr(os, "sched_getaffinity"):
        return cores
    usable = os.sched_getaffinity(0)
    try:
        return len({_siblings(topology / f"cpu{number}" / "topology") for number in usable})
    except OSError:
        return min(cores, len(usable))


def _siblings(folder: Path) -> str:
    """Return the list of logical CPUs of a core. Linux before 5.5 has it under the second name only."""
    try:
        return (folder / "core_cpus_list").read_text()
    except FileNotFoundError:
        return (folder / "thread_siblings_list").read_text()


@cache
def pool(threads: int) -> _native.Pool:
    """Return the process's pool with this number of threads, shared by all devices."""
    return _native.Pool(threads)

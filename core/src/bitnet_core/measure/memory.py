"""Memory of the host."""

from __future__ import annotations


def host_memory() -> dict[str, float]:
    """Resident bytes of this process (pages of a mapped model file count), bytes of the machine, what is used of them
    by all programs, and the process's share in percent."""
    import psutil  # where it is used: a first text must come at once

    resident, machine = psutil.Process().memory_info().rss, psutil.virtual_memory()
    return {
        "resident_bytes": resident,
        "total_bytes": machine.total,
        "used_bytes": machine.total - machine.available,
        "resident_percent": 100 * resident / machine.total,
    }

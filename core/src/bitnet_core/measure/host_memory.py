"""Memory use of the host."""

from __future__ import annotations


def host_memory() -> dict[str, float]:
    """Return the resident bytes of this process (with the pages of a mapped model file), the bytes of the machine and
    those used by all programs, and the share of this process in percent."""
    import psutil  # imported here because it would delay the first token

    resident = psutil.Process().memory_info().rss
    machine = psutil.virtual_memory()
    return {
        "resident_bytes": resident,
        "total_bytes": machine.total,
        "used_bytes": machine.total - machine.available,
        "resident_percent": 100 * resident / machine.total,
    }

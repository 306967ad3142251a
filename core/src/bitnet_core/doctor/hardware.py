"""The GPUs of this machine as the operating system lists them, without a driver."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from bitnet_hal.discovery.known import GPU_BACKENDS, KNOWN, PCI_VENDORS

_PCI_CLASSES: Final = ("0x03", "0x12")  # display controllers, processing accelerators
_ELSEWHERE: Final = ("dxg", "dri/renderD*", "kfd", "nvidia[0-9]*", "nvhost*", "nvmap", "mali*")
"""Device files of GPUs that may not be on a PCI bus: in WSL, and on systems on a chip."""
_SYSTEMS: Final = {"linux": "Linux", "win32": "Windows", "darwin": "macOS"}
_PCI: Final = Path("/sys/bus/pci/devices")
_DEV: Final = Path("/dev")


def pci_gpus(root: Path = _PCI) -> set[str]:
    """Return the PCI vendor ids (such as 0x10de) of the GPUs on the bus; empty if there is no PCI bus."""
    found = set()
    for folder in root.glob("*"):
        try:
            kind, vendor = ((folder / name).read_text().strip() for name in ("class", "vendor"))
        except OSError:
            continue
        if kind.startswith(_PCI_CLASSES):
            found.add(vendor)
    return found


def nothing_to_do(backend: str, pci: Path = _PCI, dev: Path = _DEV) -> str:
    """Return the reason why a backend needs no driver on this machine: its hardware is absent.

    Returns "" if the hardware may be present, or if the system has no list of hardware.
    """
    if backend not in GPU_BACKENDS:
        return ""
    known = KNOWN[backend]
    if sys.platform not in known.systems:
        return f"for {' and '.join(_SYSTEMS[name] for name in known.systems)} only: nothing to do"
    if sys.platform != "linux":
        return ""
    gpus = pci_gpus(pci)
    if (dev / "dxg").exists() or (not gpus and any(any(dev.glob(pattern)) for pattern in _ELSEWHERE)):
        return ""
    if len(known.cards) == 1 and known.cards[0] not in gpus:
        return f"no {PCI_VENDORS[known.cards[0]]} GPU in this machine: nothing to do"
    served = gpus.intersection(PCI_VENDORS)  # others are virtual displays of virtual machines and servers
    return "" if served else "no GPU in this machine: nothing to do"

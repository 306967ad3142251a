"""Temperature, clocks and power of a GPU from the kernel's driver amdgpu (Linux), which needs no library."""

from __future__ import annotations

from pathlib import Path

PCI = Path("/sys/bus/pci/devices")
FILES = (
    ("temperature", "temp1_input", 1e-3),
    ("clock", "freq1_input", 1e-6),
    ("memory_clock", "freq2_input", 1e-6),
    ("power", "power1_average", 1e-6),
    ("power", "power1_input", 1e-6),  # of newer GPUs
)
"""The files of amdgpu's hwmon folder, with the factors from mC, Hz and uW to the units of
bitnet_hal.features.SENSORS."""


def readings(address: str, root: Path = PCI) -> dict[str, float]:
    """Return the readings (bitnet_hal.features.SENSORS) of the GPU with a PCI address such as "0000:03:00.0".

    Files that do not exist are left out, as on an APU, whose memory has no clock of its own.
    """
    found = {}
    for folder in sorted(root.glob(f"{address}/hwmon/hwmon*")) if address else ():
        for name, file, factor in FILES:
            try:
                found[name] = int((folder / file).read_text("ascii")) * factor
            except (OSError, ValueError):
                continue
    return found

"""Kernels in OpenCL C and their tunings; nothing here needs a binding."""

from pathlib import Path

_FOLDER = Path(__file__).parent
PORTABLE = (_FOLDER / "kernels",)
NVIDIA = (_FOLDER / "nvidia", *PORTABLE)
"""Folders that are searched for a source, in this order."""

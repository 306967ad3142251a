"""HIP C++ sources. The folder `portable`, with its tunings, is bitnet-cuda's.

A build copies it here (hatch_build.py); a checkout uses bitnet-cuda's folder directly.
"""

from pathlib import Path

KERNELS = Path(__file__).parent
PORTABLE = KERNELS / "portable"
if not PORTABLE.is_dir():
    __path__.append(str(KERNELS.parents[3] / "bitnet-cuda/src/bitnet_cuda/kernels"))
    PORTABLE = Path(__path__[-1]) / "portable"

"""HIP C++ sources. Those of `portable`, with their tilings, are bitnet-cuda's: a build puts them here (hatch_build.py),
and a checkout finds them where they lie."""

from pathlib import Path

KERNELS = Path(__file__).parent
PORTABLE = KERNELS / "portable"
if not PORTABLE.is_dir():
    __path__.append(str(KERNELS.parents[3] / "bitnet-cuda/src/bitnet_cuda/kernels"))
    PORTABLE = Path(__path__[-1]) / "portable"

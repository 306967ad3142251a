"""Memory of mapped files."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


def forget_pages(array: npt.NDArray[np.generic]) -> None:
    """Lets the system drop the pages of the file that `array` views; they are read again when they are needed.

    Where a file is read once from end to end, its pages would count as the process's memory until the end.
    """
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)

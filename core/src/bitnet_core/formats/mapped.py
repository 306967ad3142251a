"""A file's bytes: mapped into memory, or read as a whole."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError


class FileBytes:
    """The content of a file as it was opened. buffer: its bytes; a replaced file does not change them.

    mapped: where false, the file is read as a whole. It then takes memory, and nothing that happens to the file reaches
    this process; the bytes of a mapped file that is cut off while it is used end the process (SIGBUS).
    ModelError if the file cannot be read or is shorter than `least` bytes.
    """

    def __init__(self, path: Path, least: int, mapped: bool = True) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size < least:
                    raise ModelError(f"{path}: {status.st_size} bytes are too few; the file is empty or cut off")
                self.buffer: mmap.mmap | bytes = (
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mapped else file.read()
                )
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
        self._stamp = _stamp(status)

    def digest(self, digest: hashlib._Hash) -> None:
        """Adds what was opened, whatever lies at the path now; ModelError if it was written to meanwhile."""
        try:
            now = _stamp(self.path.stat())
        except OSError:  # moved or deleted: the bytes are still there
            now = (0, 0, 0, 0)
        if isinstance(self.buffer, mmap.mmap) and now[:2] == self._stamp[:2] and now != self._stamp:
            raise ModelError(f"{self.path}: was changed after it was opened, so nobody can say what was computed with")
        digest.update(self.buffer)


def sha256(files: Iterable[FileBytes]) -> str:
    """Hex digest of the files' bytes, one after the other."""
    digest = hashlib.sha256()
    for file in files:
        file.digest(digest)
    return digest.hexdigest()


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    """Which file, then which content."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def forget_pages(array: npt.NDArray[np.generic]) -> None:
    """Lets the system drop the pages of the file that `array` views; they are read again when they are needed.

    Where a file is read once from end to end, its pages would count as the process's memory until the end.
    """
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)

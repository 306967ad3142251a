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
    """The content of a file at the time of opening. buffer: its bytes; replacing the file does not change them.

    mapped: map the file. If such a file is truncated while in use, the process ends (SIGBUS). If False, the file is
    read into memory, and later changes to it have no effect. Raises ModelError if the file cannot be read or is shorter
    than `least` bytes.
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
        """Hash the bytes that were opened, even if the path now names another file.

        Raises ModelError if the mapped file was modified since.
        """
        try:
            now = _stamp(self.path.stat())
        except OSError:  # moved or deleted: the opened bytes are still there
            now = (0, 0, 0, 0)
        if isinstance(self.buffer, mmap.mmap) and now[:2] == self._stamp[:2] and now != self._stamp:
            raise ModelError(
                f"{self.path}: was modified while open; results cannot be attributed to a version of the file"
            )
        digest.update(self.buffer)


def sha256(files: Iterable[FileBytes]) -> str:
    """Return the hex digest of the concatenated files."""
    digest = hashlib.sha256()
    for file in files:
        file.digest(digest)
    return digest.hexdigest()


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return the file's identity (device, inode) followed by its version."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def forget_pages(array: npt.NDArray[np.generic]) -> None:
    """Let the system drop the pages of the file behind `array`; they are read again on access.

    Pages of a file that is read once from end to end would otherwise count as the process's memory.
    """
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)

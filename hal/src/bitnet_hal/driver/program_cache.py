"""Compiled programs on disk, for every plugin whose driver gives them out: cubins, OpenCL binaries, pipeline caches."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import platformdirs

from bitnet_hal.errors import GpuError

log = logging.getLogger(__name__)
P = TypeVar("P")

LIMIT = 256 << 20
"""Bytes that the programs of one backend may take: a model compiles some tens of programs of at most 1 MB each."""
_ABANDONED = 3600.0
"""Seconds after which a file that is being written is taken for one whose writer died."""
_DIGEST = hashlib.sha256().digest_size


class ProgramCache:
    """One folder of programs, each in a file with the hash of its key and content; several processes may share it.

    It never raises: a damaged program counts as absent, and where the folder cannot be written nothing is kept. When
    the programs take more than `limit` bytes, those that were not used for the longest time go.
    """

    def __init__(self, backend: str, folder: Path | None = None, limit: int = LIMIT) -> None:
        self.folder = folder or Path(platformdirs.user_cache_dir("bitnet", appauthor=False)) / backend
        self.limit = limit

    @staticmethod
    def key(*parts: str | bytes) -> str:
        """Name all that the program depends on: source, constants, options, device, versions of driver and compiler."""
        digest = hashlib.sha256()
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def load(self, key: str) -> bytes | None:
        """The program, or None."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        program = content[_DIGEST:]
        if content[:_DIGEST] != _digest(key, program):
            log.info("the compiled program %s is damaged and will be made again", path)
            return None
        with suppress(OSError):
            os.utime(path)  # used last
        return program

    def store(self, key: str, program: bytes) -> None:
        """Keep it: whole or not at all."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_digest(key, program) + program)
                Path(name).replace(self._path(key))
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
            self._trim()
        except OSError as error:
            log.info("compiled programs are not kept in %s: %s", self.folder, error)

    def program(
        self, key: str, load: Callable[[bytes], P], build: Callable[[], P], binary: Callable[[P], bytes | None]
    ) -> P:
        """What the driver makes of the program that is kept; what `build` makes, and its `binary` kept, where there is
        none or the driver does not take it back."""
        if kept := self.load(key):
            try:
                return load(kept)
            except GpuError as error:  # as good as damaged
                log.info("the driver refuses a cached program (%s), it is built again", error)
        program = build()
        if made := binary(program):
            self.store(key, made)
        return program

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.bin"

    def _trim(self) -> None:
        kept = 0
        for used, nbytes, path in sorted(self._files(), reverse=True):
            kept += nbytes
            abandoned = path.suffix == ".part" and used < time.time() - _ABANDONED
            if abandoned or (path.suffix == ".bin" and kept > self.limit):
                with suppress(OSError):  # another process was quicker, or has it open
                    path.unlink()

    def _files(self) -> list[tuple[float, int, Path]]:
        """(time of the last use, bytes, path)."""
        found = []
        for path in self.folder.iterdir():
            with suppress(OSError):  # another process dropped it
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        return found


def _digest(key: str, program: bytes) -> bytes:
    return hashlib.sha256(key.encode() + program).digest()

"""Cache of compiled programs on disk: cubins, OpenCL binaries, pipeline caches."""

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
"""Maximum bytes of one backend's programs; a model compiles some tens of programs of at most 1 MB each."""
_ABANDONED = 3600.0
"""Seconds after which a partial file counts as abandoned by its writer."""
_DIGEST = hashlib.sha256().digest_size


class ProgramCache:
    """A folder of programs, each in a file with the hash of its key and content; processes may share it.

    It never raises: a damaged program counts as absent, and an unwritable folder stores nothing. Beyond `limit` bytes,
    the least recently used programs are deleted.
    """

    def __init__(self, backend: str, folder: Path | None = None, limit: int = LIMIT) -> None:
        self.folder = folder or Path(platformdirs.user_cache_dir("bitnet", appauthor=False)) / backend
        self.limit = limit
        self._log = logging.getLogger(f"bitnet_{backend.replace('-', '')}")  # of the plugin's package

    @staticmethod
    def key(*parts: str | bytes) -> str:
        """Hash all that a program depends on: source, constants, options, device, versions of driver and compiler."""
        digest = hashlib.sha256()
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def load(self, key: str) -> bytes | None:
        """Return the program, None if it is absent or damaged."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        program = content[_DIGEST:]
        if content[:_DIGEST] != _digest(key, program):
            log.info("the compiled program %s is damaged and will be rebuilt", path)
            return None
        with suppress(OSError):
            os.utime(path)  # marks it as recently used
        self._log.debug("cached program %s has %s bytes", key[:12], f"{len(program):,}")
        return program

    def store(self, key: str, program: bytes) -> None:
        """Store a program atomically."""
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
            log.info("compiled programs cannot be stored in %s: %s", self.folder, error)

    def program(
        self, key: str, load: Callable[[bytes], P], build: Callable[[], P], binary: Callable[[P], bytes | None]
    ) -> P:
        """Return `load` of the cached program, or the result of `build`, whose `binary` is then stored.

        It builds if no program is cached or if `load` raises a GpuError.
        """
        began = time.perf_counter()
        if kept := self.load(key):
            try:
                program = load(kept)
                self._log.debug("cache hit: program %s loaded in %.3f s", key[:12], time.perf_counter() - began)
                return program
            except GpuError as error:  # treated as damaged
                log.info("the driver rejects a cached program (%s); it is rebuilt", error)
        program = build()
        self._log.debug("cache miss: program %s built in %.3f s", key[:12], time.perf_counter() - began)
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
                with suppress(OSError):  # another process deleted it or has it open
                    path.unlink()

    def _files(self) -> list[tuple[float, int, Path]]:
        """Return (time of last use, bytes, path) of every file."""
        found = []
        for path in self.folder.iterdir():
            with suppress(OSError):  # another process deleted it
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        return found


def _digest(key: str, program: bytes) -> bytes:
    return hashlib.sha256(key.encode() + program).digest()

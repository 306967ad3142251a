"""Atomic output files and folders: nothing is destroyed, no partial file appears.

The destination must be new, or a regular file that the caller allows to be replaced; never a link, a device, a pipe or
a file of the model being read. Content is written to a temporary file beside it, which replaces it when complete. A
folder must be new or empty.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from bitnet_hal.errors import BitnetError, UsageError


def check_output(
    path: Path, inputs: Iterable[Path] = (), *, force: bool = False, error: type[BitnetError] = UsageError
) -> None:
    """Raise `error` if a file must not be written at `path`.

    inputs: files and folders being read. force: allow an existing regular file to be replaced.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        status = None
    except (OSError, ValueError) as exc:
        raise error(f"{path}: cannot be written: {_reason(exc)}") from exc
    if any(_same(path, source) for source in inputs):
        raise error(f"{path}: is (or is part of) the model being read; choose another name")
    if status is None:
        _check_folder(path, error)
    elif not stat.S_ISREG(status.st_mode):
        raise error(f"{path}: is {_kind(status.st_mode)}, not a file; it is not replaced")
    elif not force:
        raise error(f"{path}: exists; choose another name, or replace it with --force")


@contextmanager
def new_file(
    path: Path, inputs: Iterable[Path] = (), *, force: bool = False, error: type[BitnetError] = UsageError
) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block ends without error. Arguments as in `check_output`."""
    inputs = tuple(inputs)
    check_output(path, inputs, force=force, error=error)
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")  # no other writer has this name
    try:
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            check_output(path, inputs, force=force, error=error)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as exc:
        raise error(f"{path}: cannot be written: {_reason(exc)}. Choose another place; nothing was kept") from exc


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Create a temporary folder that becomes `path` when the block ends without error.

    Raises UsageError if `path` exists and is not an empty folder, or if it cannot be written.
    """
    try:
        if os.path.lexists(path) and (path.is_symlink() or not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} exists and is not an empty folder; name another one")
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=path.parent, prefix=f".{path.name[:100]}.") as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            yield made
            if path.exists():
                path.rmdir()
            made.rename(path)
    except OSError as exc:
        raise UsageError(f"{path}: cannot be written: {_reason(exc)}. Choose another place; nothing was kept") from exc


def _check_folder(path: Path, error: type[BitnetError]) -> None:
    with suppress(OSError):
        if path.parent.is_dir() and os.access(path.parent, os.W_OK | os.X_OK):
            return
    raise error(f"{path}: cannot be written: the folder {path.parent} is missing or not writable")


def _same(path: Path, source: Path) -> bool:
    """Return whether `path` is the source, possibly through a link, or a file inside it."""
    try:
        place = path.resolve()
        source = source.resolve()
        return place.samefile(source) or source in place.parents
    except (OSError, RuntimeError):  # one of them does not exist
        return False


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISLNK, "a link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"))
    return next((kind for test, kind in kinds if test(mode)), "a device or socket")


def _reason(exc: Exception) -> str:
    return (isinstance(exc, OSError) and exc.strerror) or str(exc)

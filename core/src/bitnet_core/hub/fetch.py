"""Fetch a model of the hub into huggingface_hub's cache, or find it there."""

from __future__ import annotations

import errno
import hashlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bitnet_hal.discovery.known import install_command
from bitnet_hal.errors import BitnetError, UsageError

from bitnet_core.errors import ModelError
from bitnet_core.hub.bounds import Bounds, shown
from bitnet_core.hub.model_files import ModelFiles, choose
from bitnet_core.hub.process import in_child, serve
from bitnet_core.hub.reference import Reference, is_reference
from bitnet_core.units import count, size

ANSWER_TIMEOUT = 10.0
"""Maximum seconds without data in an answer, huggingface_hub's own limit for files."""

Say = Callable[[str], None]
"""A callback for one line about the chosen files."""


def local(model: str, say: Say) -> str:
    """Return a model's path: `model` itself, or the files of a hub reference, fetched if needed. Raises the errors of
    `pull`."""
    return str(pull(Reference.parse(model), say)) if is_reference(model) else model


def library() -> Any:
    """Import huggingface_hub. Raises UsageError, with the install command, if it is missing."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise UsageError(f"models of the hub need huggingface_hub: {install_command('bitnet-core[hub]')}") from error
    return huggingface_hub


def pull(reference: Reference, say: Say) -> Path:
    """Fetch a model; return its file or folder. Cached files are kept, and interrupted downloads resumed.

    Without a connection the cached copy is used, and reported through `say`. Raises ModelError if the model cannot be
    fetched, UsageError without huggingface_hub.
    """
    library()
    return in_child(str(reference), say)


def main(reference: str) -> None:
    """Run the child process of `pull`."""
    parsed = Reference.parse(reference)
    serve(reference, lambda bounds, say: _fetch(parsed, bounds, say))


def _fetch(reference: Reference, bounds: Bounds, say: Say) -> Path:
    """Fetch a model in this process, whose huggingface_hub gets the bounds."""
    hub = library()
    bounds.install(hub)
    if not sys.stderr.isatty():
        hub.utils.disable_progress_bars()
    with _explained(reference, hub):
        try:
            info = hub.HfApi().model_info(
                reference.repo, revision=reference.revision, files_metadata=True, timeout=ANSWER_TIMEOUT
            )
        except Exception as error:
            if not _is_unreachable(error, hub):
                raise
            return _cached(reference, hub, say)
        files = _files(info)
        sizes = {name: file.size or 0 for name, file in files.items()}
        choice = choose(reference.repo, sizes, reference.file)
        _announce(reference, choice, sizes, say)
        _check_room(reference, hub, choice, sizes)
        paths = [_one(reference, hub, bounds, name, files[name]) for name in choice.files]
    return paths[0].parent if choice.is_folder else paths[0]


def _files(info: Any) -> dict[str, Any]:
    """Return the described files by name. Raises ModelError for an invalid description."""
    if not _is_hash(info.sha, 40):
        raise ModelError("the hub does not name the commit of the repository by a hash")
    files = {file.rfilename: file for file in info.siblings or () if shown(file.rfilename)}
    for name, file in files.items():
        if file.size is not None and (type(file.size) is not int or file.size < 0):
            raise ModelError(f"the hub announces {file.size!r:.40} bytes for {name}")
        if file.lfs is not None and not _is_hash(file.lfs.sha256, 64):
            raise ModelError(f"the hub announces no SHA-256 for {name}")
    return files


def _is_hash(text: object, length: int) -> bool:
    return isinstance(text, str) and len(text) == length and set(text) <= set("0123456789abcdef")


def _one(reference: Reference, hub: Any, bounds: Bounds, name: str, file: Any) -> Path:
    """Return the path of one file; a fetched file is compared with the announced size and, if large, the SHA-256."""
    revision = reference.revision or "main"
    known = isinstance(hub.try_to_load_from_cache(reference.repo, name, revision=revision), str)
    if file.size is None:
        raise ModelError(f"the hub does not announce the size of {name}")
    bounds.file = file.size
    path = Path(hub.hf_hub_download(reference.repo, name, revision=revision))
    if not known and (path.stat().st_size != file.size or (file.lfs is not None and _sha256(path) != file.lfs.sha256)):
        _remove(path, Path(hub.constants.HF_HUB_CACHE) / f"models--{reference.repo.replace('/', '--')}")
        raise ModelError(
            f"{name} arrived damaged (its size or SHA-256 differs from the hub's) and was removed; try again"
        )
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _remove(path: Path, folder: Path) -> None:
    """Remove a cached file and the data that it links to. Raises ModelError for data outside the repository's folder,
    which does not belong to the cache."""
    data = path.resolve()
    if not data.is_relative_to(folder.resolve()):
        raise ModelError(f"{path} is damaged and links to {data}, outside of {folder}: remove the link yourself")
    path.unlink()
    data.unlink(missing_ok=True)


def _announce(reference: Reference, choice: ModelFiles, sizes: Mapping[str, int], say: Say) -> None:
    total = sum(sizes[name] for name in choice.files)
    name = choice.form if choice.is_folder else f"{choice.files[0]}, {choice.form}"
    say(f"{reference}: {size(total)} in {count(len(choice.files), 'file')} ({name})")


def _check_room(reference: Reference, hub: Any, choice: ModelFiles, sizes: Mapping[str, int]) -> None:
    revision = reference.revision or "main"
    missing = sum(
        sizes[name]
        for name in choice.files
        if not isinstance(hub.try_to_load_from_cache(reference.repo, name, revision=revision), str)
    )
    folder = Path(hub.constants.HF_HUB_CACHE)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if missing > free:
        needed = f"needs {size(missing)} and {size(free)} are free"
        raise ModelError(
            f"{reference}: {needed} in {hub.constants.HF_HUB_CACHE}; make room, or set HF_HOME to a larger disk"
        )


def _cached(reference: Reference, hub: Any, say: Say) -> Path:
    """Return the copy in the cache. Raises ModelError if there is none."""
    for repo in hub.scan_cache_dir().repos if Path(hub.constants.HF_HUB_CACHE).is_dir() else ():
        if repo.repo_type != "model" or repo.repo_id != reference.repo:
            continue
        wanted = reference.revision or "main"
        for revision in repo.revisions:
            if wanted in revision.refs or revision.commit_hash.startswith(wanted):
                sizes = sizes_of(revision)
                choice = choose(reference.repo, sizes, reference.file)
                commit = revision.commit_hash[:12]
                say(f"{reference}: the hub is not reachable; using the cached copy ({commit})")
                folder = Path(revision.snapshot_path)
                return folder if choice.is_folder else folder / choice.files[0]
    raise ModelError(
        f"{reference}: is not in the cache, and the hub at {hub.constants.ENDPOINT} is not reachable "
        "(or HF_HUB_OFFLINE is set); connect, or pass a file"
    )


def sizes_of(revision: Any) -> dict[str, int]:
    """Return the bytes of the files of a cached revision, by their names in the repository."""
    folder = Path(revision.snapshot_path)
    named = ((Path(file.file_path).relative_to(folder).as_posix(), file.size_on_disk) for file in revision.files)
    return {name: nbytes for name, nbytes in named if shown(name)}


def _is_unreachable(error: Exception, hub: Any) -> bool:
    """Return whether there was no answer: offline mode, no network, a refused or broken connection."""
    if isinstance(error, hub.errors.HfHubHTTPError):
        return False
    names = {kind.__name__ for kind in type(error).__mro__}  # by name, as huggingface_hub chooses the HTTP library
    return isinstance(error, ConnectionError) or "TransportError" in names


@contextmanager
def _explained(reference: Reference, hub: Any) -> Iterator[None]:
    """Convert the library's exceptions to ModelError or UsageError."""
    errors, page = hub.errors, f"{hub.constants.ENDPOINT}/{reference.repo}"
    try:
        yield
    except ModelError as error:
        text = str(error)
        raise type(error)(text if text.startswith("hf:") else f"{reference}: {text}") from error
    except BitnetError:
        raise
    except errors.HFValidationError as error:
        raise UsageError(f"{reference}: {error}") from error
    except errors.GatedRepoError as error:
        raise ModelError(f"{reference}: access is restricted; accept its terms at {page} and set HF_TOKEN") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{reference}: there is no such repository, or it is private and HF_TOKEN is not set or has no access to it"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{reference}: the repository has no revision {reference.revision!r}") from error
    except errors.EntryNotFoundError as error:
        raise ModelError(f"{reference}: the file is gone from the hub: {_line(error)}") from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "an error")
        hint = "; HF_TOKEN is wrong or has no access" if status in (401, 403) else "; try again later"
        raise ModelError(f"{reference}: the hub answered {status} ({_line(error)}){hint}") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            text = f"the disk is full in {hub.constants.HF_HUB_CACHE}; make room and try again: the download resumes"
        elif _is_unreachable(error, hub):
            text = f"the connection to {hub.constants.ENDPOINT} broke ({_line(error)}); try again: the download resumes"
        else:
            text = f"the hub's answer makes no sense ({type(error).__name__}: {_line(error)})"
        raise ModelError(f"{reference}: {text}") from error


def _line(error: Exception) -> str:
    """Return the first line of an error's message."""
    lines = str(error).strip().splitlines()
    text = lines[0][:200] if lines else type(error).__name__
    return "".join(c if c.isprintable() else "?" for c in text)

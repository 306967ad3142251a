"""The models in huggingface_hub's cache that bitnet can run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bitnet_hal.errors import UsageError

from bitnet_core.errors import ModelError
from bitnet_core.hub.fetch import library, sizes_of
from bitnet_core.hub.model_files import choices
from bitnet_core.hub.reference import Reference


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the cache. reference: its name as an argument; form: as in ModelFiles; used: seconds since 1970."""

    reference: str
    form: str
    nbytes: int
    commit: str
    path: Path
    used: float


def cached_models() -> list[CachedModel]:
    """Return every model of every cached revision, by name. Raises UsageError without huggingface_hub."""
    found = []
    for repo in _repositories(library()):
        for revision in repo.revisions:
            sizes = sizes_of(revision)
            models = choices(sizes)
            folder = Path(revision.snapshot_path)
            for choice in models:
                file = choice.files[0] if len(models) > 1 else None
                found.append(
                    CachedModel(
                        reference=str(Reference(repo.repo_id, file, _name(revision))),
                        form=choice.form,
                        nbytes=sum(sizes[file] for file in choice.files),
                        commit=revision.commit_hash,
                        path=folder if choice.is_folder else folder / choice.files[0],
                        used=repo.last_accessed,
                    )
                )
    return sorted(found, key=lambda model: model.reference)


@dataclass(frozen=True, slots=True)
class Removal:
    """The data that `remove` deletes. folder: the repository's folder in the cache; nbytes: bytes that become free."""

    reference: Reference
    folder: Path
    files: int
    nbytes: int
    strategy: Any  # huggingface_hub's DeleteCacheStrategy


def removal(reference: Reference) -> Removal:
    """Find all cached data of a repository, or of the revision that the reference names.

    Raises ModelError if nothing is cached, or some of it lies outside the repository's folder; UsageError for a
    reference to a file.
    """
    if reference.file is not None:
        raise UsageError(f"{reference}: a repository is removed as a whole: name it as {Reference(reference.repo)}")
    hub = library()
    for repo in _repositories(hub):
        chosen = [one for one in repo.revisions if reference.revision is None or _is(one, reference.revision)]
        if repo.repo_id == reference.repo and chosen:
            alone = replace(hub.scan_cache_dir(), repos=frozenset((repo,)))  # other repositories may have equal commits
            strategy = alone.delete_revisions(*(one.commit_hash for one in chosen))
            files = {file.blob_path for one in chosen for file in one.files}
            found = Removal(reference, Path(repo.repo_path), len(files), strategy.expected_freed_size, strategy)
            _check_inside(found)
            return found
    raise ModelError(
        f"{reference}: nothing of it is in {hub.constants.HF_HUB_CACHE}; `bitnet models` lists the cached models"
    )


def remove(found: Removal) -> None:
    """Remove the data that `removal` found. Raises ModelError if some of it could not be removed."""
    found.strategy.execute()
    left = [path for path in (*found.strategy.repos, *found.strategy.snapshots) if Path(path).exists()]
    if left:
        raise ModelError(f"{found.reference}: {left[0]} could not be removed completely")


def _check_inside(found: Removal) -> None:
    """Raise ModelError if a link leads out of the cache, because its target does not belong to the cache."""
    folder = found.folder.resolve()
    strategy = found.strategy
    if found.folder.is_symlink():
        raise ModelError(f"{found.reference}: {found.folder} is a link to {folder}; remove both yourself")
    for path in (*strategy.repos, *strategy.snapshots, *strategy.refs, *strategy.blobs):
        if not Path(path).resolve().is_relative_to(folder):
            raise ModelError(f"{found.reference}: {path} is outside of {folder}, so nothing is removed")


def _repositories(hub: Any) -> list[Any]:
    """Return the models' folders of the cache."""
    if not Path(hub.constants.HF_HUB_CACHE).is_dir():
        return []
    return [repo for repo in hub.scan_cache_dir().repos if repo.repo_type == "model"]


def _name(revision: Any) -> str | None:
    """Return the name of a revision in a reference; None for the main branch."""
    return None if "main" in revision.refs else min(revision.refs, default=revision.commit_hash[:12])


def _is(revision: Any, name: str) -> bool:
    """Return whether a cached revision has this name, or a commit that begins with it."""
    return name in revision.refs or (len(name) >= 7 and revision.commit_hash.startswith(name))

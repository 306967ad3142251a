"""What huggingface_hub's cache holds of models that bitnet reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bitnet_core.errors import ModelError
from bitnet_core.hub.choose import choose
from bitnet_core.hub.fetch import library, sizes_of
from bitnet_core.hub.reference import Reference


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the cache. reference: what to pass as a model; form: as in Choice.what; used: seconds since 1970."""

    reference: str
    form: str
    nbytes: int
    commit: str
    path: Path
    used: float


def cached_models() -> list[CachedModel]:
    """Every cached revision that holds a model, by name; UsageError without huggingface_hub."""
    hub = library()
    if not Path(hub.constants.HF_HUB_CACHE).is_dir():
        return []
    found = []
    for repo in hub.scan_cache_dir().repos:
        for revision in repo.revisions if repo.repo_type == "model" else ():
            sizes = sizes_of(revision)
            try:
                choice = choose(repo.repo_id, sizes)
            except ModelError:  # of another kind, or not all of it was fetched
                continue
            name = None if "main" in revision.refs else min(revision.refs, default=revision.commit_hash[:12])
            folder = Path(revision.snapshot_path)
            found.append(
                CachedModel(
                    reference=str(Reference(repo.repo_id, revision=name)),
                    form=choice.what,
                    nbytes=sum(sizes[file] for file in choice.files),
                    commit=revision.commit_hash,
                    path=folder if choice.is_folder else folder / choice.files[0],
                    used=repo.last_accessed,
                )
            )
    return sorted(found, key=lambda model: model.reference)

"""The models that the options of `bitnet serve` name: files, folders, the hub's cache, and files of tables."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bitnet_core.cli.text_files import read_text
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.fields import DeclaredOption, check_options, option, options_of, unknown_option
from bitnet_core.options.loading import LoadOptions
from bitnet_hal.errors import UsageError, short

HUB = "hub"
"""The source of models that is huggingface_hub's cache."""

_PART = re.compile(r"-\d+-of-\d+$")


@dataclass(frozen=True, slots=True)
class Sources:
    """The options of `bitnet serve` that name models."""

    models: tuple[str, ...] = option(
        (),
        flags=("--model", "-m"),
        metavar="FILE",
        group="Model",
        help="GGUF file, model folder or hf:OWNER/REPO[:FILE]; repeat it for several models. Default: the small model "
        "that comes with bitnet.",
    )
    models_from: tuple[str, ...] = option(
        (),
        metavar="SOURCE",
        group="Model",
        help="Models to load when they are asked for: a folder of them, a TOML file with a table for each, or hub for "
        "those that were pulled; may be repeated.",
    )


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The keys of a model's table beside the options of loading and of the engine."""

    model: str | None = option(None, help="As --model. Default: the table's name.")
    alias: tuple[str, ...] = option((), help="Further names for clients.")
    device: str | None = option(None, help="As --device. Default: that of the command line.")
    pinned: bool = option(False, help="Load the model at the start, and never unload it.")

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model and its options. names: for clients; () for its own."""

    model: str | None
    device: str | None
    loading: LoadOptions
    engine: EngineOptions
    names: tuple[str, ...] = ()
    pinned: bool = False
    nbytes: int | None = field(default=None, compare=False)


def listed_models(
    sources: Sources, names: tuple[str, ...], device: str | None, loading: LoadOptions, engine: EngineOptions
) -> list[ListedModel]:
    """Return the models in the order of the options. names: of a single one.

    Raises UsageError if two have one name, or a source has no models or is not valid.
    """
    plain = ListedModel(None, device, loading, engine)
    if not sources.models_from and len(sources.models) < 2:
        return [replace(plain, model=next(iter(sources.models), None), names=names)]
    found = [replace(plain, model=model, names=(_name(model),), nbytes=_nbytes(model)) for model in sources.models]
    for source in sources.models_from:
        found += _from(source, plain)
    if names:
        raise UsageError("--alias names a single model; several have their names in the file of --models-from")
    seen: dict[str, str | None] = {}
    for one in found:
        for name in one.names:
            if name in seen:
                text = f"two models have the name {name}: {seen[name]} and {one.model}"
                raise UsageError(f"{text}; a file for --models-from gives them other names")
            seen[name] = one.model
    return found


def _from(source: str, plain: ListedModel) -> list[ListedModel]:
    """Return the models of one --models-from."""
    if source == HUB:
        found = list(_cached(plain))
    elif Path(source).is_dir():
        found = list(_in_folder(Path(source), plain))
    else:
        found = list(_in_file(Path(source), plain))
    if not found:
        raise UsageError(f"--models-from {source}: there are no models")
    return found


def _cached(plain: ListedModel) -> Iterator[ListedModel]:
    from bitnet_core.hub import cached_models

    for one in cached_models():
        name = one.reference.removeprefix("hf:")
        yield replace(plain, model=str(one.path), names=(name,), nbytes=one.nbytes)


def _in_folder(folder: Path, plain: ListedModel) -> Iterator[ListedModel]:
    """Yield the models of a folder and of the folders in it, each in its best form as in a repository of the hub."""
    from bitnet_core.hub.model_files import choices

    for place in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        sizes = {path.name: path.stat().st_size for path in place.iterdir() if path.is_file()}
        for choice in choices(sizes):
            path = place if choice.is_folder else place / choice.files[0]
            nbytes = sum(sizes[file] for file in choice.files)
            yield replace(plain, model=str(path), names=(_name(str(path)),), nbytes=nbytes)


def _in_file(path: Path, plain: ListedModel) -> Iterator[ListedModel]:
    """Yield the models of a TOML file. Paths in it begin at its folder. Raises UsageError if it is not valid."""
    try:
        tables = tomllib.loads(read_text(str(path)))
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{path} is not TOML: {exc}") from exc
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise UsageError(f"{path}: {short(name)} is not a table: each model has one, as in [{name[:40]}]")
        try:
            yield _of_table(name, table, path.parent, plain)
        except UsageError as exc:
            raise UsageError(f"{path}: [{name}]: {exc}") from exc


def _of_table(name: str, table: Mapping[str, Any], folder: Path, plain: ListedModel) -> ListedModel:
    declared = {kind: options_of(kind) for kind in (TableOptions, LoadOptions, EngineOptions)}
    for key in table:
        if not any(key in options for options in declared.values()):
            raise unknown_option(key, {key for options in declared.values() for key in options})

    def given(kind: Any) -> dict[str, Any]:
        return {key: _value(one, table[key]) for key, one in declared[kind].items() if key in table}

    own = TableOptions(**given(TableOptions))
    model = own.model or name
    if (folder / model).exists():
        model = str(folder / model)
    return ListedModel(
        model=model,
        device=own.device or plain.device,
        loading=replace(plain.loading, **given(LoadOptions)),
        engine=replace(plain.engine, **given(EngineOptions)),
        names=(name, *own.alias),
        pinned=own.pinned,
        nbytes=_nbytes(model),
    )


def _value(one: DeclaredOption, value: Any) -> Any:
    """Return an option's value from a table's, which may be a text as on the command line."""
    return one.option.parse(value) if one.option.parse is not None and isinstance(value, str) else value


def _name(model: str) -> str:
    """Return the name of a model for clients: OWNER/REPO, or that of its file or folder."""
    if model.startswith("hf:"):
        return model.removeprefix("hf:")
    path = Path(model)
    return _PART.sub("", path.stem) if path.suffix == ".gguf" else path.name


def _nbytes(model: str) -> int | None:
    """Return the size of a model's files; None if they are not there."""
    path = Path(model)
    if path.is_dir():
        return sum(file.stat().st_size for file in path.glob("*.safetensors"))
    start = _PART.sub("", path.stem)
    files = path.parent.glob(f"{start}-*-of-*.gguf") if start != path.stem else (path,)
    return sum(file.stat().st_size for file in files if file.is_file()) or None

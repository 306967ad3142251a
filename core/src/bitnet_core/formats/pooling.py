"""The pooling rule of an embedding model: a key of a GGUF file, or the files of sentence-transformers in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bitnet_core.errors import ModelError
from bitnet_core.formats.json_file import read_list, read_object
from bitnet_core.formats.keys import MetadataReader, short
from bitnet_core.model.config import Pooling, PoolingMode
from bitnet_core.model.source import Finding

_OF_GGUF: Final[dict[int, PoolingMode | None]] = {0: None, 1: "mean", 2: "cls", 3: "last"}
_RERANKER: Final = 4
_OF_FOLDER: Final[dict[str, PoolingMode]] = {
    "mean": "mean",
    "mean_tokens": "mean",
    "cls": "cls",
    "cls_token": "cls",
    "lasttoken": "last",
}
"""Modes by the names of sentence-transformers, as flags and as a word."""
_ASSUMED: Final = Finding(
    "info", "pooling-assumed", "no pooling is stated; as in BitNet-embedding, the last token's row is taken"
)


def pooling_of_gguf(path: Path, keys: MetadataReader, projection_norms: bool) -> tuple[Pooling | None, list[Finding]]:
    """Return the pooling of a GGUF file, whose vectors are normalized as in llama.cpp; None if it generates text.

    projection_norms: the model has norms before its projections, as only embedding models do. Raises ModelError for a
    reranker and for an unknown value.
    """
    number = keys.count_or_none("pooling_type")
    if number == _RERANKER:
        raise ModelError(f"{path}: the pooling_type {number} is that of a reranker, which is not supported")
    if number not in _OF_GGUF:
        raise ModelError(f"{path}: the pooling_type {number} is unknown, only 0 to 3 are supported")
    mode = _OF_GGUF[number]
    if mode is None:
        return (Pooling("last"), [_ASSUMED]) if projection_norms else (None, [])
    return Pooling(mode), []


def pooling_number(path: Path, pooling: Pooling) -> int:
    """Return the value of GGUF's key pooling_type. Raises ModelError for vectors that are not normalized, which GGUF
    cannot say."""
    if not pooling.normalize:
        raise ModelError(f"{path}: the model does not normalize its vectors, and GGUF has no key for that")
    return next(number for number, mode in _OF_GGUF.items() if mode == pooling.mode)


def pooling_of_folder(folder: Path, projection_norms: bool) -> tuple[Pooling | None, list[Finding]]:
    """Return the pooling that modules.json and the configuration of its pooling module state; None without them.

    Raises ModelError for modules other than Transformer, Pooling and Normalize, and for another kind of pooling.
    """
    file = folder / "modules.json"
    if not file.is_file():
        return (Pooling("last"), [_ASSUMED]) if projection_norms else (None, [])
    mode: PoolingMode | None = None
    normalize = False
    for module in read_list(file):
        kind = module.get("type") if isinstance(module, dict) else None
        name = kind.rpartition(".")[2] if isinstance(kind, str) else ""
        if name == "Pooling":
            mode = _mode(folder, module)
        elif name == "Normalize":
            normalize = True
        elif name != "Transformer":
            raise ModelError(f"{file}: the module {short(kind)} is not supported, only Transformer, Pooling, Normalize")
    return (None if mode is None else Pooling(mode, normalize)), []


def _mode(folder: Path, module: dict[str, Any]) -> PoolingMode:
    """Return the mode in the configuration of a pooling module, in a folder directly below the model's."""
    path = module.get("path")
    if not isinstance(path, str) or path in ("", "..") or Path(path).name != path:
        raise ModelError(
            f"{folder / 'modules.json'}: the path {short(path)} is not the name of a folder in the model's"
        )
    file = folder / path / "config.json"
    values = read_object(file)
    stated = values.get("pooling_mode")
    if isinstance(stated, str):
        modes = [stated]
    else:
        prefix = "pooling_mode_"
        modes = [key.removeprefix(prefix) for key, value in values.items() if key.startswith(prefix) and value is True]
    if len(modes) != 1 or modes[0] not in _OF_FOLDER:
        raise ModelError(
            f"{file}: the pooling {short(', '.join(modes) or None)} is not supported, only mean, cls and lasttoken"
        )
    return _OF_FOLDER[modes[0]]

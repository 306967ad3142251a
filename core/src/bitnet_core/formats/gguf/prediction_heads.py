"""Heads for multi-token prediction in GGUF files: `nextn_predict_layers` layers after the trunk's.

They predict a second token from the trunk's last state, and the trunk does not read them. block_count includes them;
each has the tensors of a layer and `nextn.*`. Source: llama.cpp, src/models/qwen35.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from bitnet_core.errors import ModelError
from bitnet_core.formats.keys import MAX_LAYERS, MetadataReader
from bitnet_core.model.source import Finding

_LAYER = re.compile(r"blk\.(\d{1,4})\.(.+)")


def trunk_layers(path: Path, keys: MetadataReader, tensors: Collection[str]) -> int:
    """Return the number of layers without those of prediction heads.

    Raises ModelError if the keys or tensors contradict each other.
    """
    layers = keys.count("block_count", limit=MAX_LAYERS)
    heads = keys.count_or_none("nextn_predict_layers", limit=MAX_LAYERS)
    if heads >= layers:
        raise ModelError(f"{path}: nextn_predict_layers {heads} leaves no layer of the {layers} in block_count")
    for layer in range(layers - heads, layers):
        names = [match[2] for name in tensors if (match := _LAYER.fullmatch(name)) and int(match[1]) == layer]
        if names and not any(name.startswith("nextn.") for name in names):
            raise ModelError(
                f"{path}: nextn_predict_layers is {heads} of {layers} layers, and layer {layer} has no tensors "
                f"blk.{layer}.nextn.*: it may belong to the trunk; get a file that a recent converter wrote"
            )
    return layers - heads


def in_heads(keys: MetadataReader, name: str) -> bool:
    """Return whether a tensor, named with or without ".weight", belongs to a prediction head."""
    match = _LAYER.fullmatch(name)
    if not match:
        return False
    layers = keys.count("block_count", limit=MAX_LAYERS)
    heads = keys.count_or_none("nextn_predict_layers", limit=MAX_LAYERS)
    return layers - heads <= int(match[1]) < layers


def findings(keys: MetadataReader) -> list[Finding]:
    """Return a finding about skipped heads, if the file has any."""
    if not keys.count_or_none("nextn_predict_layers", limit=MAX_LAYERS):
        return []
    text = "the file has a head for multi-token prediction, which is skipped; the text does not depend on it"
    return [Finding("info", "prediction-head-skipped", text)]

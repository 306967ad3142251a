"""Multi-token prediction heads in GGUF files: `nextn_predict_layers` layers after the trunk's.

They predict a second token from the trunk's last state; the trunk does not depend on them. block_count includes them.
Each has the tensors of an attention layer and `nextn.*`. The first one can be used if dense products support the types
of its matrices. Source: llama.cpp, src/models/qwen35.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeVar

from bitnet_core.errors import ModelError
from bitnet_core.formats.dense import KERNEL_TYPES, MATRIX_TYPES
from bitnet_core.formats.keys import MAX_LAYERS, MetadataReader, short
from bitnet_core.formats.names import PREDICTION, prediction_matrices, prediction_options, prediction_vectors
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import Finding

T = TypeVar("T")

_NAMES = {"post_attention_norm": "ffn_norm"}
"""Names of an attention layer's tensors that differ from ModelSource's."""

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


def first_head(tensors: Mapping[str, T], layer: int) -> dict[str, T]:
    """Return the tensors of the head in this layer, by ModelSource's names (formats.names.PREDICTION)."""
    found: dict[str, T] = {}
    for stored, tensor in tensors.items():
        match = _LAYER.fullmatch(stored)
        if match and int(match[1]) == layer:
            name = _NAMES.get(match[2], match[2]).removeprefix(PREDICTION)
            found[PREDICTION + name] = tensor
    if query := found.get(PREDICTION + "attn_q"):
        found[PREDICTION + "attn_gate"] = query
    return found


def unusable(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, str]) -> str:
    """Return why a head cannot be read, "" if it can. shapes, types: those of `first_head`, as stored."""
    expected: dict[str, tuple[int, ...]] = {name: (size,) for name, size in prediction_vectors(config).items()}
    expected |= prediction_matrices(config)
    for name in ("attn_q", "attn_gate"):
        expected[PREDICTION + name] = (2 * config.q_width, config.hidden)
    options = prediction_options(config)
    if missing := sorted(expected.keys() - shapes.keys()):
        return f"it has no tensor {missing[0]}"
    if unknown := sorted(shapes.keys() - expected.keys() - options.keys()):
        return f"its tensor {short(unknown[0])} is unknown"
    for name, shape in shapes.items():
        if shape != (expected | options)[name]:
            return f"its tensor {name} has the shape {list(shape)}, not {list((expected | options)[name])}"
        if types[name] not in (MATRIX_TYPES if len(shape) > 1 else KERNEL_TYPES):
            return f"its tensor {name} is of type {types[name]}, which is not supported there"
    return ""


def findings(keys: MetadataReader, reason: str) -> list[Finding]:
    """Return a finding about the file's heads, if it has any. reason: of `unusable`."""
    if not keys.count_or_none("nextn_predict_layers", limit=MAX_LAYERS):
        return []
    text = "the file has a head for multi-token prediction"
    if reason:
        text += f", which is skipped: {reason}; the text does not depend on it"
        return [Finding("info", "prediction-head-skipped", text)]
    return [Finding("info", "prediction-head", f"{text}, which the option speculate can use; texts are the same")]

"""Write a model with grouped activation scales as a folder: unpacked floats for transformers, or packs for MLX."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats import dense
from bitnet_core.formats.convert.gguf import Step
from bitnet_core.formats.convert.hf import common_fields
from bitnet_core.formats.hf.names import stored
from bitnet_core.formats.hf.safetensors_writer import TensorHeader, write_safetensors
from bitnet_core.formats.names import tables, ternaries, vectors
from bitnet_core.formats.ternary import mlx
from bitnet_core.model.families import FAMILIES
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import TernaryWeight
from bitnet_core.tokenizer.export import folder_files

GROUP_SIZE: Final = 128
"""Columns that share a scale in the written packs."""

Arrays = Iterable[npt.NDArray[np.generic]]


def write_grouped(source: ModelSource, folder: Path, step: Step, *, packed: bool) -> None:
    """Write config.json, model.safetensors and the tokenizer's files into a new folder.

    packed: MLX's 2-bit packs with a scale and a bias per 128 columns; else F16 matrices of -d, 0 and d. Norms are F32.
    Raises ModelError for a family without such a folder, and for scales that f16 would round or that are finer than a
    pack's.
    """
    config = source.config
    shapes = {**ternaries(config), **tables(config)}
    declared = [one for name, shape in shapes.items() for one in _declared(name, shape, packed)]
    declared += [TensorHeader(stored(name), "F32", (n,)) for name, n in vectors(config).items()]
    files = folder_files(source.tokenizer, config.context)
    files["config.json"] = json.dumps(config_json(source, packed), indent=2) + "\n"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    write_safetensors(folder / "model.safetensors", declared, _tensors(source, step, packed))


def _declared(name: str, shape: tuple[int, int], packed: bool) -> list[TensorHeader]:
    if not packed:
        return [TensorHeader(stored(name), "F16", shape)]
    rows, columns = shape
    groups = (rows, columns // GROUP_SIZE)
    parts = (TensorHeader(stored(f"{name}.{part}"), "F16", groups) for part in ("scales", "biases"))
    return [TensorHeader(stored(name), "U32", (rows, columns // 16)), *parts]


def _tensors(source: ModelSource, step: Step, packed: bool) -> Iterator[tuple[str, Arrays]]:
    config = source.config
    ternary = ternaries(config)
    for name in {**ternary, **tables(config)}:
        if name not in ternary:
            yield stored(name), _halves(source, name)
            continue
        weight = source.ternary(name)
        try:
            if packed:
                words, scales = mlx.encode(weight, GROUP_SIZE)
                yield stored(name), [words]
                yield stored(f"{name}.scales"), [scales]
                yield stored(f"{name}.biases"), [-scales]
            else:
                yield stored(name), [_floats(weight)]
        except ModelError as error:
            raise ModelError(f"{source.path}: {name}: {error}") from error
        step(weight.rows * weight.columns)
    for name in vectors(config):
        yield stored(name), [source.vector(name).astype("<f4")]


def _floats(weight: TernaryWeight) -> npt.NDArray[np.uint8]:
    return dense.from_ternary(weight).data


def _halves(source: ModelSource, name: str) -> Iterator[npt.NDArray[np.generic]]:
    """Yield a float table as f16. Raises ModelError for values that f16 would round."""
    table = source.dense(name)
    for at in range(0, table.rows, 1024):
        values = dense.decode(table.data[at : at + 1024], table.dtype, table.columns)
        with np.errstate(over="ignore"):
            halves = values.astype("<f2")
        if not np.isfinite(values).all():
            raise ModelError(f"{source.path}: {name}: a value is infinite or not a number: the data is damaged")
        if (halves != values).any():
            raise ModelError(
                f"{source.path}: {name}: {table.dtype} values that f16 would round; convert to q2_0 instead"
            )
        yield halves


def config_json(source: ModelSource, packed: bool) -> dict[str, Any]:
    """Return config.json of the family's class in transformers."""
    folder = FAMILIES[source.config.arch].folder
    if folder is None:
        raise ModelError(
            f"{source.path}: models of architecture {source.config.arch} have no form as a Hugging Face folder"
        )
    values: dict[str, Any] = {
        "architectures": [folder.architecture],
        "model_type": folder.model_type,
        "attention_bias": False,
        **common_fields(source),
        "use_sliding_window": False,
        "torch_dtype": "float16",
    }
    if packed:
        values["quantization"] = values["quantization_config"] = {"group_size": GROUP_SIZE, "bits": mlx.TERNARY_BITS}
    return values

"""Read a converted model back and compare it with its source: every code, scale, table, norm, and the tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats import dense
from bitnet_core.formats.convert.target import ENCODINGS, Target
from bitnet_core.formats.names import matrices, tables, ternaries, vectors
from bitnet_core.formats.open import open_model
from bitnet_core.formats.rotation import reordered, row_order
from bitnet_core.formats.ternary.codes import row_chunks, unpack
from bitnet_core.formats.ternary.scales import per_block
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.model.weights import TernaryWeight
from bitnet_core.tokenizer.export import probes
from bitnet_core.tokenizer.load import load_tokenizer

_ZEROS = 0x55  # four zero codes


def compare(source: ModelSource, path: Path, target: Target, step: Callable[[int], None]) -> None:
    """Raise ModelError, naming the first difference between `source` and the model at `path`."""
    written = open_model(path, layout="A" if target == "i2_s" else None)
    try:
        _compare(source, written, target, step)
    finally:
        written.close()


def _compare(source: ModelSource, written: ModelSource, target: Target, step: Callable[[int], None]) -> None:
    config = source.config
    if _meaning(config, config) != _meaning(written.config, config):
        raise _different("the configuration", f"{written.config} instead of {config}")
    encoders = [load_tokenizer(model.tokenizer) for model in (source, written)]
    for text in probes(encoders[0]):
        ids, other = (one.encode(text, add_bos=one.add_bos, parse_special=True) for one in encoders)
        if ids != other:
            raise _different("the tokenizer", f"{text!r} is encoded as {other} instead of {ids}")
    for name in vectors(config):
        if not np.array_equal(source.vector(name), written.vector(name)):
            raise _different(name, "its values changed")
    ternary = ternaries(config)
    half = target in ENCODINGS and ENCODINGS[target].half_scales
    for name, (rows, columns) in tables(config).items():
        if name in ternary:
            _compare_matrix(source.ternary(name), written, name, half)
        else:
            _compare_tables(source, written, name)
        written.release()
        step(rows * columns)
    order = row_order(config, to_interleaved=not config.rope_interleaved)
    if config.rope_interleaved == written.config.rope_interleaved:
        order = {}
    for name, (rows, columns) in matrices(config).items():
        _compare_matrix(reordered(source.ternary(name), order.get(name.rpartition(".")[2])), written, name, half)
        written.release()
        step(rows * columns)


def _meaning(config: ModelConfig, source: ModelConfig) -> ModelConfig:
    """Return the configuration without the differences between containers: names, the order of rows, digits beyond f32,
    and, in GGUF, Llama 3's scaling (a tensor of factors)."""
    config = replace(
        config,
        arch="",
        name="",
        rope_interleaved=False,
        norm_eps=float(np.float32(config.norm_eps)),
        rope_theta=float(np.float32(config.rope_theta)),
        rope_factor=float(np.float32(config.rope_factor)),
    )
    if source.rope_scaling != "llama3":
        return config
    return replace(
        config,
        rope_scaling="none",
        rope_factor=1.0,
        rope_original_context=0,
        rope_low_freq_factor=1.0,
        rope_high_freq_factor=4.0,
    )


def _compare_tables(source: ModelSource, written: ModelSource, name: str) -> None:
    old, new = source.dense(name), written.dense(name)
    for part in row_chunks(old.rows, old.columns):
        before, after = (dense.decode(table.data[part], table.dtype, table.columns) for table in (old, new))
        if not np.array_equal(before, after, equal_nan=True):
            raise _different(name, "its values changed")


def _compare_matrix(old: TernaryWeight, written: ModelSource, name: str, half: bool) -> None:
    new = written.ternary(name)
    for part in row_chunks(old.rows, old.columns):
        if not np.array_equal(unpack(old.codes[part], old.columns), unpack(new.codes[part], new.columns)):
            raise _different(name, f"ternary values of rows {part.start} to {part.stop - 1} changed")
    expected, found = _scales(old, new), _scales(new, old)
    if half:
        expected = expected.astype(np.float16).astype(np.float32)
    if not np.array_equal(expected, found):
        raise _different(name, "its scales changed")


def _scales(weight: TernaryWeight, other: TernaryWeight) -> npt.NDArray[np.float32]:
    """Return the scales in the finer kind of both weights, 0 for groups whose values are all zero."""
    if weight.scale_kind == other.scale_kind == "tensor":
        return weight.scales if (weight.codes != _ZEROS).any() else np.zeros(1, np.float32)
    return per_block(weight, min(weight.block or weight.columns, other.block or other.columns))


def _different(what: str, how: str) -> ModelError:
    return ModelError(f"the written model differs from its source in {what}: {how}; nothing was kept")

"""Checks that a model's parts fit together; what is wrong is refused, what is odd becomes a finding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from bitnet_core.errors import ModelError
from bitnet_core.formats.names import LINEARS, matrices, tables, vectors
from bitnet_core.model.config import ModelConfig

_EXTRA = re.compile(rf"blk\.\d+\.({'|'.join(LINEARS)})\.(bias|scale)")


def check_shapes(path: Path, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Every tensor the model needs is there with the right shape, and no tensor is unknown. Names without ".weight".

    Raises ModelError naming the tensor.
    """
    expected: dict[str, tuple[int, ...]] = {name: (n,) for name, n in vectors(config).items()}
    expected |= tables(config) | matrices(config)
    for name, shape in expected.items():
        if name not in shapes:
            raise ModelError(f"{path}: tensor {name!r} is missing: the file is incomplete or of another kind of model")
        if shapes[name] != shape:
            raise ModelError(
                f"{path}: tensor {name!r} has the shape {list(shapes[name])} where the metadata wants {list(shape)}"
            )
    for name in sorted(shapes.keys() - expected.keys()):
        _check_extra(path, config, name, shapes[name])


def _check_extra(path: Path, config: ModelConfig, name: str, shape: tuple[int, ...]) -> None:
    match = _EXTRA.fullmatch(name)
    if match:
        linear = name.removesuffix(f".{match[2]}")
        rows = matrices(config).get(linear, (0, 0))[0]
        known = shape == ((rows,) if match[2] == "bias" else (1,))
    elif name == "rope_freqs":
        known = shape == (config.head_dim // 2,)
    else:
        known = name == "output" and config.tied_head
    if not known:
        raise ModelError(f"{path}: tensor {name!r} of shape {list(shape)} is unknown: an unsupported kind of model")

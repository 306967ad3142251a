"""Checks at load: invalid tensors are rejected, unusual ones become findings with stable names.

Opening a model checks that every tensor is known, present and of the right shape; norms and scales; the share of
non-zero codes in a sample of each ternary matrix; the tokenizer's keys. Reading a matrix checks all its codes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.keys import MetadataReader
from bitnet_core.formats.names import floats, matrices, tables, vectors
from bitnet_core.formats.ternary.codes import Bytes
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.rope import LONG_FACTORS
from bitnet_core.model.source import Finding
from bitnet_core.string_table import StringTable

SCALES = 1e-4, 1e3
"""The usual range of a ternary matrix's scales; mean |W| of a trained matrix is well within it."""

NONZERO = 0.3, 0.95
"""The usual range of the share of non-zero codes: absmean yields 0.69 for Gaussian weights; 1.0 means only signs.
"""

_EXTRA = re.compile(r"blk\.\d+\.\w+\.(bias|scale)")
_ZEROS = np.array([sum((byte >> s & 3) == 1 for s in (0, 2, 4, 6)) for byte in range(256)], np.uint8)


def check_shapes(path: Path, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that every required tensor is present with the right shape, and that no tensor is unknown.

    shapes: by names without ".weight". Raises ModelError naming the tensor.
    """
    expected: dict[str, tuple[int, ...]] = {name: (n,) for name, n in vectors(config).items()}
    expected |= tables(config) | matrices(config) | floats(config)
    for name, shape in expected.items():
        if name not in shapes:
            raise ModelError(f"{path}: tensor {name!r} is missing: the file is incomplete or of another kind of model")
        if shapes[name] != shape:
            raise ModelError(
                f"{path}: tensor {name!r} has the shape {list(shapes[name])}; the metadata requires {list(shape)}"
            )
    for name in sorted(shapes.keys() - expected.keys()):
        _check_extra(path, config, name, shapes[name])


def _check_extra(path: Path, config: ModelConfig, name: str, shape: tuple[int, ...]) -> None:
    match = _EXTRA.fullmatch(name)
    if match:
        rows = 0 if config.delta else matrices(config).get(name.removesuffix(f".{match[1]}"), (0, 0))[0]
        known = rows > 0 and (shape == (rows,) if match[1] == "bias" else shape in ((), (1,)))
    elif name in LONG_FACTORS | {"rope_freqs"}:
        known = shape == (config.rotary_pairs,)
    else:
        known = name == "output" and config.tied_head
    if not known:
        raise ModelError(f"{path}: tensor {name!r} of shape {list(shape)} is unknown: an unsupported kind of model")


def check_scales(scales: npt.NDArray[np.float32]) -> None:
    """Raise ModelError for a scale that is not a positive finite number."""
    wrong = scales[~(np.isfinite(scales) & (scales > 0))]
    if wrong.size:
        raise ModelError(f"a scale is {wrong.flat[0]}, not a positive number: the data is damaged, or another format")


def check_norm(values: npt.NDArray[np.float32]) -> None:
    """Raise ModelError for a norm weight that is not finite."""
    if not np.isfinite(values).all():
        raise ModelError("a weight is infinite or not a number: the data is damaged")


def nonzero_share(packed: Bytes, elements: int) -> float:
    """Return the share of codes other than 1 among `elements` codes in packed bytes, whose padding has code 1."""
    padding = packed.size * 4 - elements
    return 1 - (int(_ZEROS[packed].sum(dtype=np.int64)) - padding) / elements


@dataclass
class ChecksReport:
    """A collection of unusual ternary matrices, reported as one finding per kind."""

    scales: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)

    def inspect(self, name: str, scales: npt.NDArray[np.float32], share: float | None) -> None:
        """Record the matrix if its scales or its share of non-zero codes are outside the usual range."""
        odd = scales[(scales < SCALES[0]) | (scales > SCALES[1])]
        if odd.size:
            self.scales[name] = float(odd.flat[0])
        if share is not None and not NONZERO[0] <= share <= NONZERO[1]:
            self.shares[name] = share

    def findings(self) -> list[Finding]:
        """Return at most one warning about scales and one about shares."""
        found = []
        if self.scales:
            text = f"{_some(self.scales)}: scales outside {SCALES[0]:g} to {SCALES[1]:g} are unusual"
            found.append(Finding("warning", "scale-range", text))
        if self.shares:
            text = (
                f"{_some(self.shares)}: a share of non-zero weights outside {NONZERO[0]:g} to {NONZERO[1]:g} is unusual"
                "; the file may be made from weights that were not ternary"
            )
            found.append(Finding("warning", "non-zero-share", text))
        return found


def _some(values: Mapping[str, float]) -> str:
    name, value = next(iter(values.items()))
    return f"{name} ({value:.3g})" if len(values) == 1 else f"{name} ({value:.3g}) and {len(values) - 1} more matrices"


def scale_direction(
    scales: Sequence[float], direction: Literal["multiply", "divide"], linear_class: str
) -> list[Finding]:
    """Return a warning if stored scales look like the inverse of the linear class's convention: mean |W| is far below
    5, and its inverse above 1."""
    odd = [s for s in scales if (s > 5 if direction == "multiply" else s < 1)]
    if not odd:
        return []
    text = (
        f"{len(odd)} of {len(scales)} weight_scale values (such as {odd[0]:.4g}) look wrong for linear_class "
        f"{linear_class}, whose products are to {direction} by them: the text may be garbage"
    )
    return [Finding("warning", "scale-direction", text)]


def gguf_tokenizer(path: Path, config: ModelConfig, metadata: Mapping[str, Any]) -> list[Finding]:
    """Return warnings about the tokenizer's keys. Raises ModelError for more tokens than the embedding has rows."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, StringTable):
        return [Finding("warning", "missing-tokenizer", "the file has no tokenizer.ggml.tokens")]
    if len(tokens) > config.vocab:
        raise ModelError(f"{path}: has {len(tokens)} tokens but only {config.vocab} rows of token_embd")
    found = []
    keys = MetadataReader(path, metadata)
    if keys.text("tokenizer.ggml.model", "") == "gpt2" and not keys.text("tokenizer.ggml.pre", ""):
        llama3 = config.vocab == 128256 or tokens[128000:128001] == ["<|begin_of_text|>"]
        rule = "llama-bpe, because the vocabulary is that of Llama 3" if llama3 else "the default rules"
        text = f"the file does not name its pre-tokenizer (tokenizer.ggml.pre); it is read with {rule}"
        found.append(Finding("warning", "missing-pre-tokenizer", text))
    if keys.text("tokenizer.ggml.pre", "") == "falcon3":
        text = "pre-tokenizer falcon3 is read by bitnet.cpp's rule (single digits); llama.cpp reads it as llama-bpe"
        found.append(Finding("info", "pre-tokenizer-disputed", text))
    if "BITNET" in keys.text("tokenizer.chat_template", ""):
        text = "the chat template is the converter's placeholder, which never ends a turn; BitNet 2B-4T's own is used"
        found.append(Finding("warning", "placeholder-chat-template", text))
    return found

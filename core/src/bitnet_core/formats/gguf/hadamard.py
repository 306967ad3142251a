"""The Hadamard rotation of a model's activations, as stated by the `prism.hadamard` keys of a GGUF file (Bonsai 2).

The file holds W' of y = W' H(s * x): s is a vector of signs for each width, H the normalized Walsh-Hadamard matrix in
Sylvester's order, H[i, j] = (-1)^popcount(i & j) / sqrt(B), over blocks of B columns. H is its own inverse, and a row z
of an embedding table represents s * H(z). Tensor types do not show any of this, so each key is either applied or
rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.keys import MetadataReader, short
from bitnet_core.formats.names import signs_name

PREFIX = "prism.hadamard."
_KEYS = frozenset({
    *("version", "block_size", "transform", "axis", "sign_mode", "weight_names", "inverse_weight_names"),
    *("sign_widths", "sign_values", "gdn_v_grouped"),
})  # fmt: skip
_FIXED = {"transform": "normalized-sylvester-walsh-hadamard", "axis": "input-last-dimension"}
_LARGEST_BLOCK = 1 << 14

Signs = dict[str, npt.NDArray[np.float32]]
"""Signs f32[width], each +1 or -1, by names.signs_name(width)."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation of a model. block: columns that are rotated together. regrouped: value heads are reordered before
    the rotation (DeltaNet.regrouped)."""

    block: int
    signs: Signs
    regrouped: bool


def is_rotated(metadata: Mapping[str, Any]) -> bool:
    """Return whether the metadata has keys of a rotation."""
    return any(key.startswith(PREFIX.removesuffix(".")) for key in metadata)


def check_unrotated(path: Path, metadata: Mapping[str, Any]) -> None:
    """Raise ModelError if the metadata has keys of a rotation: without it the text would be garbage."""
    if is_rotated(metadata):
        raise ModelError(
            f"{path}: the weights are rotated (its prism.hadamard keys ask for a Hadamard transform of the activations)"
            ", which is supported for architecture qwen35 (Bonsai 2) alone; use a model without the rotation"
        )


def read_rotation(
    path: Path,
    metadata: Mapping[str, Any],
    rotated: Collection[str],
    widths: Collection[int],
    is_skipped: Callable[[str], bool],
) -> Rotation:
    """Return the rotation that the keys describe.

    rotated: the names of the tensors that the file must list as rotated, no more and no fewer, except those that
    is_skipped accepts. widths: of their rows. Raises ModelError for a rotation that is not supported.
    """
    keys = MetadataReader(path, metadata, PREFIX)
    if unknown := sorted(keys.names_below("") - _KEYS):
        raise ModelError(
            f"{path}: the key {short(PREFIX + unknown[0])} is unknown, and the rotation may be wrong without it"
        )
    if (version := keys.count("version")) != 1:
        raise ModelError(f"{path}: {PREFIX}version is {version}; only 1 is supported")
    for name, wanted in _FIXED.items():
        if (said := keys.text(name, "")) != wanted:
            raise ModelError(f"{path}: {PREFIX}{name} is {short(said)}; only {wanted} is supported")
    block = keys.count("block_size", limit=_LARGEST_BLOCK)
    if block < 2 or block & (block - 1) or any(width % block for width in widths):
        raise ModelError(
            f"{path}: {PREFIX}block_size {block} is not a power of two that divides {_listed(widths)} columns"
        )
    _check_names(path, keys, rotated, is_skipped)
    return Rotation(block, _signs(path, keys, widths), keys.flag("gdn_v_grouped", False))


def _check_names(path: Path, keys: MetadataReader, rotated: Collection[str], is_skipped: Callable[[str], bool]) -> None:
    """Raise ModelError unless every ternary matrix is rotated, and the embedding inversely."""
    for name, wanted in (("weight_names", set(rotated)), ("inverse_weight_names", {"token_embd.weight"})):
        said = {stated for stated in keys.names(name) if not is_skipped(stated)}
        if odd := sorted(said ^ wanted):
            what = "names" if odd[0] in said else "lacks"
            raise ModelError(f"{path}: {PREFIX}{name} {what} {short(odd[0])}: partly rotated models are not supported")


def _signs(path: Path, keys: MetadataReader, widths: Collection[int]) -> Signs:
    mode = keys.text("sign_mode", "")
    if mode == "identity":
        return {signs_name(width): np.ones(width, np.float32) for width in widths}
    if mode != "explicit":
        raise ModelError(f"{path}: {PREFIX}sign_mode is {short(mode)}; only explicit and identity are supported")
    found, values = keys.numbers("sign_widths"), np.array(keys.numbers("sign_values"))
    if sorted(found) != sorted(widths):
        raise ModelError(f"{path}: {PREFIX}sign_widths is {short(found)}, not {_listed(widths)}")
    if len(values) != sum(widths) or not ((values == 1) | (values == -1)).all():
        raise ModelError(f"{path}: {PREFIX}sign_values must be {sum(widths)} numbers, each 1 or -1")
    parts = np.split(values.astype(np.float32), np.cumsum(found)[:-1])
    return {signs_name(width): part for width, part in zip(found, parts, strict=True)}


def _listed(widths: Collection[int]) -> str:
    return ", ".join(map(str, sorted(widths)))

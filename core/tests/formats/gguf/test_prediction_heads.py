"""A head for multi-token prediction that cannot be used is skipped with the reason; the model is read without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.formats.gguf.container import GGUFFile
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.open import open_model

FILE = Path(__file__).parents[2] / "golden" / "bonsai2" / "rotated-PQ2_0-MTP-Q8_0.gguf"
Tensors = dict[str, tuple[tuple[int, ...], str, np.ndarray]]
Change = Callable[[dict[str, Any], Tensors], None]


def rewritten(path: Path, change: Change) -> Path:
    """Return a copy of the file with other keys and tensors."""
    file = GGUFFile(FILE)
    keys = dict(file.metadata)
    tensors: Tensors = {t.name: (t.shape, t.type.name, file.data(t).copy()) for t in file.tensors.values()}
    change(keys, tensors)
    with GGUFWriter(path) as writer:
        for key, value in keys.items():
            writer.metadata(key, value)
        for name, (shape, dtype, data) in tensors.items():
            writer.tensor(name, shape, dtype, data.size)
        for name, (_, _, data) in tensors.items():
            writer.write(name, [data])
    return path


def without(name: str) -> Change:
    return lambda _, tensors: tensors.pop(f"blk.2.{name}.weight") and None


def with_tensor(name: str, *shape: int, dtype: str = "F32") -> Change:
    data = np.zeros(int(np.prod(shape)) * 66 // 256 if dtype == "TQ2_0" else 4 * int(np.prod(shape)), np.uint8)
    return lambda _, tensors: tensors.update({f"blk.2.{name}.weight": (shape, dtype, data)})


def listed(keys: dict[str, Any], _: Tensors) -> None:
    keys["prism.hadamard.weight_names"] = [*keys["prism.hadamard.weight_names"], "blk.2.ffn_up.weight"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without("nextn.eh_proj"), "it has no tensor nextn.eh_proj"),
        (without("attn_q"), "it has no tensor nextn.attn_gate"),
        (with_tensor("attn_q", 384, 256), r"nextn.attn_q has the shape \[384, 256\], not \[768, 256\]"),
        (with_tensor("nextn.new", 4), "its tensor 'nextn.new' is unknown"),
        (with_tensor("ffn_up", 512, 256, dtype="TQ2_0"), "its tensor nextn.ffn_up is of type TQ2_0, which is not"),
        (listed, "its matrices are rotated"),
    ],
)
def test_heads_that_are_skipped(tmp_path: Path, change: Change, reason: str) -> None:
    source = open_model(rewritten(tmp_path / "m.gguf", change), strict=True)
    (finding,) = source.findings
    assert finding.code == "prediction-head-skipped"
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(finding.message)
    assert not source.config.prediction_head
    assert not source.has("nextn.enorm")
    source.close()

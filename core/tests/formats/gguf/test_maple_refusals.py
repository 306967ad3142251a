"""Files of arch maple with unsupported or contradictory keys or tensors end in one clear message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.container import GGUFFile
from bitnet_core.formats.gguf.writer import GGUFWriter
from bitnet_core.formats.open import open_model

FILE = Path(__file__).parents[2] / "golden" / "maple" / "TQ.gguf"
GONE = object()
Tensors = dict[str, tuple[tuple[int, ...], str, np.ndarray]]


def rewritten(path: Path, change: Callable[[dict[str, Any], Tensors], None]) -> Path:
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


def message(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_model(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("expert_count", GONE, "maple.expert_count' is missing"),
        ("expert_count", 0, "not a whole number from 1 to 4096"),
        ("expert_count", 1 << 30, "not a whole number from 1 to 4096"),
        ("expert_count", "5", "not a whole number"),
        ("expert_count", 4, "has the shape [5, 256"),
        ("expert_used_count", 0, "not a whole number from 1 to 64"),
        ("expert_used_count", 65, "not a whole number from 1 to 64"),
        ("expert_used_count", 6, "expert_used_count 6 is more than expert_count 5"),
        ("expert_feed_forward_length", 128, "the metadata requires"),
        ("expert_shared_count", 1, "expert_shared_count"),
        ("expert_gating_func", 2, "only softmax (1) is supported"),
        ("expert_weights_norm", False, "expert_weights_norm false"),
        ("expert_weights_scale", 2.5, "expert_weights_scale other than 1"),
        ("expert_group_count", 2, "maple.expert_group_count' is not supported"),
        ("swiglu_clamp_exp", np.array([7, -1], np.float32), "not a positive number"),
        ("attention.sliding_window", GONE, "sliding_window' is missing"),
        ("attention.sliding_window", -1, "not a whole number"),
        ("attention.sliding_window_pattern", GONE, "not a list of 2 values that are true or false"),
        ("attention.sliding_window_pattern", np.array([True]), "not a list of 2 values"),
        ("attention.sliding_window_pattern", np.array([1, 0], np.int32), "true or false"),
        ("rope.dimension_count", 31, "rope.dimension_count 31 is odd"),
        ("rope.dimension_count", 66, "not a whole number from 1 to 64"),
        ("rope.scaling.type", "linear", "RoPE scaling 'linear' is not supported"),
        ("attn_logit_softcapping", 30.0, "attn_logit_softcapping"),
    ],
)
def test_keys_that_are_refused(tmp_path: Path, key: str, value: Any, words: str) -> None:
    def change(keys: dict[str, Any], tensors: Tensors) -> None:
        keys[f"maple.{key}"] = value
        if value is GONE:
            del keys[f"maple.{key}"]

    assert words in message(rewritten(tmp_path / "m.gguf", change))


def test_files_without_the_limit_have_llama_cpps(tmp_path: Path) -> None:
    def change(keys: dict[str, Any], tensors: Tensors) -> None:
        del keys["maple.swiglu_clamp_exp"]

    experts = open_model(rewritten(tmp_path / "m.gguf", change)).config.experts
    assert experts is not None
    assert experts.limit == 7


def test_tensors_that_are_refused(tmp_path: Path) -> None:
    def without_router(keys: dict[str, Any], tensors: Tensors) -> None:
        del tensors["blk.1.ffn_gate_inp.weight"]

    def turned(keys: dict[str, Any], tensors: Tensors) -> None:
        _, kind, data = tensors["blk.0.ffn_up_exps.weight"]
        tensors["blk.0.ffn_up_exps.weight"] = (256, 5, 256), kind, data

    def bias(keys: dict[str, Any], tensors: Tensors) -> None:
        tensors["blk.0.exp_probs_b.bias"] = (5,), "F32", np.zeros(20, np.uint8)

    assert "'blk.1.ffn_gate_inp' is missing" in message(rewritten(tmp_path / "1.gguf", without_router))
    assert "'blk.0.ffn_up_exps' has the shape [256, 5, 256]" in message(rewritten(tmp_path / "2.gguf", turned))
    assert "'blk.0.exp_probs_b.bias' of shape [5] is unknown" in message(rewritten(tmp_path / "3.gguf", bias))

"""Metadata of a wrong type is one clear error, whichever key it is and whoever reads it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError, TokenizerError
from bitnet_core.formats.open import open_model
from bitnet_core.tokenizer import load_tokenizer
from bitnet_core.tokenizer.chat import chosen_template

Make = Callable[..., Any]
KEYS = (
    *("general.architecture", "general.alignment", "general.name", "split.count", "split.no"),
    *("bitnet-b1.58.block_count", "bitnet-b1.58.context_length", "bitnet-b1.58.embedding_length"),
    *("bitnet-b1.58.feed_forward_length", "bitnet-b1.58.attention.head_count", "bitnet-b1.58.hidden_activation"),
    *("bitnet-b1.58.attention.head_count_kv", "bitnet-b1.58.attention.layer_norm_rms_epsilon"),
    *("bitnet-b1.58.rope.freq_base", "bitnet-b1.58.rope.scaling.type", "bitnet-b1.58.nextn_predict_layers"),
    *("bitnet-b1.58.expert_count", "bitnet-b1.58.vocab_size", "prism.hadamard.version"),
    *("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"),
    *("tokenizer.ggml.merges", "tokenizer.ggml.scores", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"),
    *("tokenizer.ggml.add_bos_token", "tokenizer.chat_template"),
)
VALUES: dict[str, Any] = {
    "bool": True,
    "int": -3,
    "large": 1 << 63,
    "float": 0.5,
    "nan": float("nan"),
    "text": "x",
    "empty text": "",
    "texts": ["a", "b"],
    "no texts": [],
    "ints": np.array([1, 2], np.int32),
    "no ints": np.zeros(0, np.int32),
    "floats": np.array([0.5, np.nan], np.float32),
    "bools": np.array([True, False]),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", KEYS)
def test_a_value_of_another_type(tmp_path: Path, make_tiny: Make, key: str, value: str) -> None:
    model = make_tiny(layers=1)
    model.keys[key] = VALUES[value]
    path = model.write(tmp_path / "a.gguf")
    with suppress(ModelError, TokenizerError):  # any other exception fails the test
        chosen_template(load_tokenizer(open_model(path).tokenizer))


@pytest.mark.parametrize(
    ("key", "words"),
    [("tokenizer.ggml.pre", "not a string"), ("tokenizer.ggml.model", "not a string"), ("split.count", "whole number")],
)
def test_the_key_is_named(tmp_path: Path, make_tiny: Make, key: str, words: str) -> None:
    model = make_tiny(layers=1)
    model.keys[key] = np.array([1, 2], np.int32)
    with pytest.raises(ModelError, match=f"{key}' is .*{words}"):
        open_model(model.write(tmp_path / "a.gguf"))

"""A tiny Hy-MT (STQ1_0, queries and keys normed after RoPE) gives the logits that transformers gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import bitnet_core
import numpy as np
import pytest
from bitnet_core.api import Model
from bitnet_core.engine.capacity import widest_chunk
from bitnet_core.errors import ModelError
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.names import ternaries
from bitnet_core.formats.open import open_model
from bitnet_hal.device import DeviceType
from bitnet_hal.reference.describe import numpy_info

HUNYUAN = Path(__file__).parent / "hunyuan"
FILE = HUNYUAN / "STQ1_0.gguf"
CACHES = {"f16": np.float16, "f32": np.float32}


@pytest.fixture
def model() -> Iterator[Model]:
    with bitnet_core.load(FILE, "numpy", strict=True) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    with np.load(HUNYUAN / "reference.npz") as archive:
        return dict(archive)


def both(reference: dict[str, Any], logits: Callable[[Any], Any]) -> Any:
    return np.concatenate([logits(reference[f"tokens_{run}"])[int(reference[f"first_{run}"]) :] for run in "ab"])


def expected(reference: dict[str, Any]) -> Any:
    return np.concatenate([reference[f"logits_{run}"] for run in "ab"])


def test_float_activations_give_the_logits_of_transformers(
    reference: dict[str, Any], float_model: ModuleType, float64_model: Any
) -> None:
    source = open_model(FILE, strict=True)
    assert (source.config.arch, source.config.qk_norm_after_rope) == ("hunyuan-dense", True)
    for logits in (lambda tokens: float_model.logits(source, tokens), float64_model(source).logits):
        np.testing.assert_allclose(both(reference, logits), expected(reference), atol=1e-3)
    source.close()


@pytest.mark.parametrize("kv_cache_type", CACHES)
def test_the_engine_is_near_transformers_and_the_same_rounding_in_float64(
    kv_cache_type: str, reference: dict[str, Any], float_model: ModuleType
) -> None:
    with bitnet_core.load(FILE, "numpy", kv_cache_type=kv_cache_type) as model:
        found = both(reference, model.engine.logits)
        same = both(reference, lambda ids: float_model.logits(model.source, ids, 32, cache=CACHES[kv_cache_type]))
    assert float_model.divergence(expected(reference), found).mean() <= 1e-2
    assert (found.argmax(axis=1) == expected(reference).argmax(axis=1)).mean() >= 0.9
    assert float_model.divergence(same, found).mean() <= 1e-3


@pytest.mark.parametrize("change", [{"qk_norm_after_rope": False}, {"rope_theta": 1e4}, {"qk_norm": False}])
def test_the_comparison_notices_another_order_and_base(
    change: dict[str, Any], model: Model, reference: dict[str, Any], float64_model: Any
) -> None:
    double = float64_model(model.source)
    double.config = replace(double.config, **change)
    assert np.abs(both(reference, double.logits) - expected(reference)).max() > 0.1


def test_decoding_continues_a_prompt_as_one_step_would(model: Model, reference: dict[str, Any]) -> None:
    """A step of one row takes other launches than a prompt, here also without the kernels that fuse RoPE."""
    prompt = reference["tokens_a"].tolist()
    found = model.generate(prompt, max_tokens=6, temperature=0).tokens
    logits = model.engine.logits([*prompt, *found])
    best = logits[len(prompt) - 1 : -1, : model.config.tokens].argmax(axis=1)
    assert tuple(best.tolist()) == tuple(found)
    assert "rope_attention" not in model.engine.kernel_launches
    assert model.engine.kernel_launches["rms_norm"] > model.config.n_layers


def test_chat_uses_the_tokens_of_the_model(model: Model) -> None:
    messages = [{"role": "system", "content": "in"}, {"role": "user", "content": "the"}]
    ids = model.chat_template.chat_tokens(messages, limit=64)
    texts = [model.tokenizer.token_text(token) for token in ids]
    special = [
        "<\uff5chy_begin▁of▁sentence\uff5c>",
        "in",
        "<\uff5chy_place▁holder▁no▁3\uff5c>",
        "<\uff5chy_User\uff5c>",
        "the",
        "<\uff5chy_Assistant\uff5c>",
    ]
    assert texts == special
    assert model.tokenizer.eos_ids == {model.tokenizer.tokens.index("<\uff5chy_place▁holder▁no▁2\uff5c>")}
    assert (model.defaults.origin, model.defaults.values.top_p) == ("Hy-MT", 0.6)


def test_it_becomes_q2_0_and_stq1_0_again_without_a_change_and_not_a_folder(
    tmp_path: Path, model: Model, float_model: Any
) -> None:
    done = convert(model.source, tmp_path / "q2_0.gguf", "q2_0", verify=True)
    again = open_model(done.path, strict=True)
    assert replace(again.config, name="") == replace(model.source.config, name="")
    tokens = np.arange(20)
    assert np.array_equal(float_model.logits(again, tokens), float_model.logits(model.source, tokens))
    back = convert(again, tmp_path / "stq1_0.gguf", "stq1_0", verify=True)
    for name in ternaries(again.config):
        found = open_model(back.path).ternary(name)
        assert np.array_equal(float_model.values(found), float_model.values(model.source.ternary(name)))
    with pytest.raises(ModelError, match="no form as a Hugging Face folder"):
        convert(model.source, tmp_path / "folder", "safetensors")


def test_a_step_has_no_more_heads_than_a_launch_has_workgroups(model: Model) -> None:
    info = replace(numpy_info(), type=DeviceType.GPU, total_memory=100 << 30, max_grid=(256, 0, 0))
    assert widest_chunk(model.config, info, 2048, 1) == 256 // model.config.n_heads

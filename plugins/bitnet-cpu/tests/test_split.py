"""The layers of one model on the CPU's backend and on that of another API."""

from __future__ import annotations

import bitnet_core
import pytest
from bitnet_hal.discovery.registry import registry

PROMPTS = ["Once upon a time", "The little dog", "There was a"]


def _texts(**options: str) -> list[str]:
    with bitnet_core.load(None, **options) as model:
        layers = model.engine.layers_by_device
        assert sum(layers.values()) == model.config.n_layers
        assert len(layers) == options.get("split", "").count(",") + 1
        return [generation.text for generation in model.generate(PROMPTS, max_tokens=12)]


@pytest.mark.parametrize("other", ["numpy", "opencl", "vulkan", "webgpu"])
def test_two_apis_share_a_model(other: str) -> None:
    """In both orders; the texts are those of the CPU alone."""
    registry.cache_clear()
    if other not in registry().backends or not registry().devices(other):
        pytest.skip(f"there is no device of the backend {other}; install its plugin and a driver")
    alone = _texts(device="cpu")
    assert _texts(split=f"{other}:2,cpu:4") == alone
    assert _texts(split=f"cpu:4,{other}:2") == alone


def test_three_apis_share_a_model() -> None:
    registry.cache_clear()
    if "opencl" not in registry().backends or not registry().devices("opencl"):
        pytest.skip("there is no device of the backend opencl; install its plugin and a driver (PoCL)")
    assert _texts(split="numpy:1,opencl:2,cpu:3") == _texts(device="cpu")

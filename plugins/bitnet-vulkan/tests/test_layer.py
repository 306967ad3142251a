"""Decoder layers in one dispatch: the same as by single launches, and an error where workgroups did not meet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bitnet_core.engine.cache import KVCache
from bitnet_core.engine.runner import Runner, Span
from bitnet_core.errors import GpuError
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.hal import View
from bitnet_core.hal.pool import MemoryPool
from bitnet_core.model.launch import Launcher
from bitnet_core.model.upload import upload
from bitnet_vulkan.device import VulkanDevice, VulkanRecording
from bitnet_vulkan.pipelines import Source

PROMPT, TOKENS = 150, 6
LOST = 256
"""As in meeting.glsl."""


@pytest.fixture(autouse=True)
def weights_in_device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that chance to lie where they can be used in place would stay matrices of their own: no such layer."""
    monkeypatch.setenv("BITNET_VULKAN_WITHOUT", "import")


def decode(device: VulkanDevice, kv: str, groups: int) -> tuple[list[str], np.ndarray, list[np.ndarray]]:
    """Kernels of a step, tokens after a prompt, and the caches, with so many workgroups that wait for each other."""
    physical = device._physical
    if not physical.features.subgroups:
        pytest.skip("the layer kernel needs subgroups")
    device._physical = replace(physical, features=replace(physical.features, resident=groups))
    source = SyntheticSource("tiny")
    weights, pool = upload(source, device, 256), MemoryPool(device)
    cache = KVCache(device, pool, source.config, kv_dtype=kv, blocks=4, sequences=1, context=256)
    cache.set_table(0, [2, 0, 3, 1])
    runner = Runner(device, Launcher(device), pool, weights, cache, kv)
    prompt = tuple(np.random.default_rng(0).integers(0, source.config.vocab, PROMPT).tolist())
    runner.forward([Span(0, 0, prompt)], [], PROMPT)
    tokens = runner.decode_greedy([Span(0, PROMPT, (1,))], TOKENS)
    recording = runner._recorded("greedy", 1).recording
    assert isinstance(recording, VulkanRecording)
    names = [dispatch.kernel.spec.name for dispatch in recording.dispatches]
    caches = []
    for view in (*cache.keys, *cache.values):
        content = np.empty(view.nbytes, np.uint8)
        device.download(view, content.data)
        caches.append(content)
    return names, tokens, caches


@pytest.mark.parametrize("kv", ["f16", "f32", "int8"])
def test_layers_do_what_their_launches_do(device: VulkanDevice, kv: str) -> None:
    apart, expected, caches = decode(device, kv, 0)
    joined, tokens, same_caches = decode(device, kv, device._physical.features.resident or 1)
    assert "decoder_layer" not in apart
    assert "decoder_layer" in joined
    assert "attention.rope" not in joined
    assert np.array_equal(tokens, expected)
    size, kind = {"f16": (2, np.float16), "f32": (4, np.float32), "int8": (1, np.int8)}[kv]
    for ours, theirs in zip(same_caches, caches, strict=True):
        a, b = (content[: content.size // size * size].view(kind).astype(np.float64) for content in (ours, theirs))
        if kv == "int8":  # scales among the codes: most are the same
            assert (a == b).mean() > 0.98
        else:
            np.testing.assert_allclose(a, b, rtol=0.02, atol=0.02)


def test_a_dispatch_that_gave_up_spoils_later_ones(device: VulkanDevice) -> None:
    """Workgroups that never meet cannot be had on a CPU: what they would leave behind stands in for them."""
    decode(device, "f16", 1)
    _, meetings = device._scratch[Source.RESIDENT]
    device.upload(View(meetings, 4 * LOST, 4), np.ones(1, np.uint32).view(np.uint8).data)
    with pytest.raises(GpuError, match="not numbers"):
        decode(device, "f16", 1)

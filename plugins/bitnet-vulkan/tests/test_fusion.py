"""Rotation, cache and attention of one row in a single dispatch: every buffer as after two launches."""

from __future__ import annotations

import numpy as np
import pytest
from bitnet_core.hal import View, whole
from bitnet_core.kernels.catalogue import ATTENTION, ROPE_STORE_KV, kv_row_bytes
from bitnet_core.model.launch import Launcher
from bitnet_vulkan.device import VulkanDevice, VulkanRecording

HEADS, KV_HEADS, DIM, POSITION, BLOCKS = 4, 2, 64, 70, 3


def put(device: VulkanDevice, array: np.ndarray) -> View:
    buffer = device.alloc(array.nbytes)
    device.upload(whole(buffer), array.reshape(-1).view(np.uint8).data)
    return whole(buffer)


def get(device: VulkanDevice, view: View) -> np.ndarray:
    out = np.empty(view.nbytes, np.uint8)
    device.download(view, out.data)
    return out


@pytest.mark.parametrize("kv", [0, 1, 2])
@pytest.mark.parametrize("slot", [64 + POSITION % 64, -1])
def test_one_dispatch_does_what_two_launches_do(device: VulkanDevice, kv: int, slot: int) -> None:
    if not device._physical.features.subgroups:
        pytest.skip("the split attention kernel needs subgroups")
    rng = np.random.default_rng(kv)
    qkv = rng.standard_normal((HEADS + 2 * KV_HEADS) * DIM).astype(np.float32)
    rope = rng.standard_normal((POSITION + 1) * DIM).astype(np.float32)
    row_bytes = kv_row_bytes(kv, DIM)
    cache = np.zeros(BLOCKS * KV_HEADS * 64 * row_bytes, np.uint8)
    step = np.array([1, POSITION, slot, 0], np.int32)
    tables = np.array([0, 1, 2], np.int32)
    shape = {"rows": 1, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "head_dim": DIM, "row_bytes": row_bytes}
    launcher = Launcher(device)
    results = []
    for recorded in (False, True):
        inputs = [put(device, array) for array in (qkv, step, rope)]
        queries, out = (put(device, np.zeros(HEADS * DIM, np.float32)) for _ in range(2))
        keys, values = put(device, cache), put(device, cache)
        launches = [
            launcher.prepare(ROPE_STORE_KV, shape, (*inputs, queries, keys, values), {"KV": kv, "INTERLEAVED": 0}),
            launcher.prepare(
                ATTENTION,
                shape | {"max_blocks": BLOCKS, "scale": DIM**-0.5},
                (queries, keys, values, inputs[1], put(device, tables), out),
                {"KV": kv},
            ),
        ]
        if recorded:
            recording = launcher.record(launches).recording
            assert isinstance(recording, VulkanRecording)
            assert len(recording.dispatches) == 1
            device.replay(recording)
        else:
            launcher.run(launches)
        results.append([get(device, view) for view in (queries, keys, values, out)])
    for number, (two, one) in enumerate(zip(*results, strict=True)):
        if number == 3:
            np.testing.assert_allclose(one.view(np.float32), two.view(np.float32), rtol=1e-5, atol=1e-6)
        else:
            assert np.array_equal(one, two), ("queries", "keys", "values")[number]

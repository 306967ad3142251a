"""Decoder layers in one launch: the same as by single launches, and an error where groups did not meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_core.engine.cache import KVCache
from bitnet_core.engine.runner import Runner, Span
from bitnet_core.errors import GpuError, OutOfMemoryError
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.hal.device import TransferMode
from bitnet_core.hal.pool import MemoryPool
from bitnet_core.model.launch import Launcher
from bitnet_core.model.upload import upload
from bitnet_opencl.device import OpenCLDevice
from bitnet_opencl.discovery import JOINED
from bitnet_opencl.recording import OpenCLRecording
from bitnet_opencl.tuning import DeviceClass, Profile

PROMPT, TOKENS = 150, 6
LOST = 256
"""As in meeting.clh."""


@pytest.fixture
def device(opencl_device: OpenCLDevice) -> Iterator[OpenCLDevice]:
    """With the kernels that join others, weights that are copied, and a GPU's constants where it is none."""
    info = opencl_device.info
    opencl_device.info = replace(info, kernels=info.kernels | JOINED, transfer=TransferMode.EXPLICIT_COPY)
    options = opencl_device._abilities
    if not opencl_device.profile.ptx:
        opencl_device.profile = Profile(DeviceClass.DISCRETE, 64, 32)
        opencl_device._abilities = [*options, "-cl-opt-disable"]  # many barriers in one kernel: minutes otherwise
    yield opencl_device
    opencl_device.info, opencl_device._abilities = info, options


def decode(
    device: OpenCLDevice, kv: str, members: int
) -> tuple[list[str], npt.NDArray[np.int32], list[npt.NDArray[np.uint8]]]:
    """Kernels of a step, tokens after a prompt, and the caches, with so many groups that wait for each other."""
    device.profile = replace(device.profile, members=members)
    source = SyntheticSource("tiny")
    weights, pool = upload(source, device, 256), MemoryPool(device)
    cache = KVCache(device, pool, source.config, kv_dtype=kv, blocks=4, sequences=1, context=256)
    cache.set_table(0, [2, 0, 3, 1])
    runner = Runner(device, Launcher(device), pool, weights, cache, kv)
    prompt = tuple(np.random.default_rng(0).integers(0, source.config.vocab, PROMPT).tolist())
    runner.forward([Span(0, 0, prompt)], [], PROMPT)
    tokens = runner.decode_greedy([Span(0, PROMPT, (1,))], TOKENS)
    recording = runner._recorded("greedy", 1).recording
    assert isinstance(recording, OpenCLRecording)
    names = [launch.source.spec.name for launch in recording.launches]
    caches = []
    for view in (*cache.keys, *cache.values):
        content = np.empty(view.nbytes, np.uint8)
        device.download(view, content.data)
        caches.append(content)
    return names, tokens, caches


@pytest.mark.parametrize("kv", ["f16", "f32", "int8"])
def test_layers_do_what_their_launches_do(device: OpenCLDevice, kv: str) -> None:
    apart, expected, caches = decode(device, kv, 0)
    joined, tokens, same_caches = decode(device, kv, device.profile.units if device.profile.ptx else 1)
    assert "decoder_layer" not in apart
    assert "decoder_layer" in joined
    assert "rope_attention" not in joined
    assert np.array_equal(tokens, expected)
    size, kind = {"f16": (2, np.float16), "f32": (4, np.float32), "int8": (1, np.int8)}[kv]
    for ours, theirs in zip(same_caches, caches, strict=True):
        a, b = (content[: content.size // size * size].view(kind).astype(np.float64) for content in (ours, theirs))
        if kv == "int8":  # scales among the codes: most are the same
            assert (a == b).mean() > 0.98
        else:
            np.testing.assert_allclose(a, b, rtol=0.02, atol=0.02)


def test_a_launch_that_gave_up_spoils_later_ones(device: OpenCLDevice) -> None:
    """Groups that never meet cannot be had on a CPU: what they would leave behind stands in for them."""
    import pyopencl as cl

    members = device.profile.units if device.profile.ptx else 1
    decode(device, "f16", members)
    for kernel in device._layer_kernels.values():
        assert kernel.parts is not None
        cl.enqueue_copy(device._queue, kernel.parts, np.ones(1, np.uint32), dst_offset=4 * LOST)
    with pytest.raises(GpuError, match="not numbers"):
        decode(device, "f16", members)
    device._layer_kernels.clear()


def test_a_driver_that_refuses_the_layer(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver says is one of our errors, and the device can record again."""
    import pyopencl as cl

    def refused(launches: object) -> None:
        raise cl.MemoryError(cl._cl._ErrorRecord("clCreateKernel", cl.status_code.OUT_OF_HOST_MEMORY, ""))

    monkeypatch.setattr(device, "_joined", refused)
    with pytest.raises(OutOfMemoryError, match="record"), device.record():
        pass
    monkeypatch.undo()
    with device.record() as recording:
        pass
    recording.close()

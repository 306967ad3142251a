"""Decoding with one launch per layer: the tokens of the numpy device, and none if work-groups did not meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from bitnet_core.engine.kv_cache.cache import KVCache
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.plan.pool import MemoryPool
from bitnet_core.plan.upload import upload
from bitnet_hal.device import Device, DeviceType, TransferMode, View
from bitnet_hal.driver.enumerate import EnumeratedDevice
from bitnet_hal.launcher import Launcher
from bitnet_hal.reference.device import NumpyDevice
from bitnet_opencl.describe import KNOWN
from bitnet_opencl.device import OpenCLDevice

pytestmark = pytest.mark.slow

PROMPT, TOKENS = 150, 6
LOST = 256
"""Word of the workspace, as in meeting.clh."""
TERNARY = replace(
    SHAPES["bonsai-1.7b"],
    vocab_tokens=1000,
    n_layers=2,
    hidden=256,
    ffn=640,
    n_heads=4,
    n_kv_heads=2,
    head_dim=64,
    vocab=1024,
    context=2048,
)


@pytest.fixture
def device(session_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenCLDevice]:
    """Yield a device that offers all fused kernels and copies weights."""
    monkeypatch.setitem(SHAPES, "tiny-ternary", TERNARY)
    info = replace(session_device.info, transfer=TransferMode.EXPLICIT_COPY)
    device = OpenCLDevice(EnumeratedDevice(session_device._device, replace(info, kernels=frozenset(KNOWN["kernels"]))))
    yield device
    device.close()


def runner_on(device: Device, shape: str, kv: str) -> Runner:
    source = SyntheticSource(shape)
    weights, pool = upload(source, device, 256), MemoryPool(device)
    cache = KVCache(device, pool, source.config, kv_cache_type=kv, blocks=4, sequences=1, context=256)
    cache.set_table(0, [2, 0, 3, 1])
    return Runner(device, Launcher(device), pool, weights, cache, kv)


def decode(runner: Runner) -> npt.NDArray[np.int32]:
    """Return greedy tokens after a prompt."""
    prompt = tuple(np.random.default_rng(0).integers(0, 1000, PROMPT).tolist())
    runner.forward([ScheduledTokens(0, 0, prompt)], [], PROMPT)
    if isinstance(device := runner.launcher.device, OpenCLDevice):  # a GPU's constants, for what is tested alone
        device._abilities = [*device._abilities, "-cl-opt-disable"]  # many barriers in one kernel: minutes otherwise
        of_gpu = {**device.info.extra, "max_group": 1024, "lanes": 32, "compute_units": 1, "members": 1}
        device.info = replace(device.info, type=DeviceType.GPU, extra=of_gpu)
    return runner.multi_step.decode([ScheduledTokens(0, PROMPT, (1,))], TOKENS)


@pytest.mark.parametrize(("shape", "kv"), [("tiny", "f32"), ("tiny", "int8"), ("tiny-ternary", "f16")])
def test_layers_decode_what_numpy_does(device: OpenCLDevice, shape: str, kv: str) -> None:
    """Decode on both devices; one workspace serves all layers and steps."""
    runner = runner_on(device, shape, kv)
    tokens = decode(runner)
    assert runner.launcher.counts["decoder_layer"] == 2 * TOKENS
    assert not runner.launcher.counts["rope_attention"]
    assert np.array_equal(tokens, decode(runner_on(NumpyDevice(), shape, kv)))


def test_a_launch_that_gave_up_spoils_later_ones(device: OpenCLDevice) -> None:
    """A CPU cannot produce work-groups that never meet, so the flag that they leave behind is written instead."""
    runner = runner_on(device, "tiny", "f16")
    decode(runner)
    spaces = [one.workspace for key, one in runner.launcher._compiled.items() if key[0] == "decoder_layer"]
    (workspace,) = [space for space in spaces if space]
    device.upload(View(workspace, 4 * LOST, 4), memoryview(np.ones(1, np.uint32)).cast("B"))
    assert (runner.multi_step.decode([ScheduledTokens(0, PROMPT, (1,))], TOKENS) == -1).all()

"""Work of the host per token, cached objects, errors and bounded waits."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import numpy as np
import pytest
from bitnet_core.api import Model, load
from bitnet_core.formats.open import open_model
from bitnet_core.options.engine import EngineOptions
from bitnet_core.tokenizer import load_tokenizer
from bitnet_hal.device import whole
from bitnet_hal.discovery.request import DeviceRequest
from bitnet_hal.discovery.selection import BackendStartupSummary
from bitnet_hal.driver.enumerate import by_index
from bitnet_hal.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuTimeoutError,
    LaunchError,
    OutOfMemoryError,
)
from bitnet_hal.testing.rules.recordings import count, counter
from bitnet_hal.testing.workbench import Bench
from bitnet_webgpu.describe import usable
from bitnet_webgpu.device import WebGpuDevice
from bitnet_webgpu.driver import module
from bitnet_webgpu.errors import checked
from bitnet_webgpu.plugin import bitnet_backend
from bitnet_webgpu.recording import FIRST_BATCH


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    backend = bitnet_backend()
    try:
        info = backend.devices()[0]
    except BackendUnavailableError as error:
        if request.config.getoption("--require-device"):
            raise
        pytest.skip(str(error))
    made = Bench(backend, info.index, info)
    yield made
    made.close()


def own(bench: Bench) -> WebGpuDevice:
    device = bench.device
    assert isinstance(device, WebGpuDevice)
    return device


HOT = ("_set_pipeline", "_set_group", "_dispatch")
"""The native calls of a dispatch. They go through cffi, which a profiler does not see, so they are counted apart."""


def calls_of(device: WebGpuDevice, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> Counter[str]:
    """Count Python's calls in `action` by name: functions, built-in functions, and those of HOT."""
    calls: Counter[str] = Counter()

    def seen(frame: FrameType, event: str, called: Any) -> None:
        name = frame.f_code.co_name if event == "call" else getattr(called, "__name__", "")
        calls[name] += event in ("call", "c_call") and name != "counted"

    with monkeypatch.context() as patch:
        for name, native in [(name, getattr(device, name)) for name in HOT]:

            def counted(*args: Any, native: Any = native, name: str = name) -> None:
                calls[name] += 1
                native(*args)

            patch.setattr(device, name, counted)
        sys.setprofile(seen)
        try:
            action()
        finally:
            sys.setprofile(None)
    return calls


def test_python_calls_of_a_token(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(device="webgpu") as model:
        model.generate("Once upon a time", max_tokens=40)  # everything compiled and recorded
        (step,) = [one for name, one in model.engine.recordings().items() if name.startswith("greedy")]
        device, tokens = model.device, 20
        assert isinstance(device, WebGpuDevice)
        dispatches = tokens * len(device._recordings[id(step.recording)].native)
        launcher = model.engine.worker.launcher
        calls = calls_of(device, monkeypatch, lambda: launcher.replay(step, tokens))
        device.synchronize()
    assert [calls[name] for name in HOT] == [dispatches] * len(HOT)
    assert calls["submit"] <= 2 * (2 + dispatches // FIRST_BATCH), "ours and wgpu's, for several tokens at a time"
    assert calls["submit"] < tokens
    assert not {"read", "upload"} & set(calls), "nothing is read back or sent"
    others = calls.total() - len(HOT) * dispatches
    assert others <= 80 * tokens, calls.most_common(12)


def test_every_launch_is_timed_in_a_pass_of_its_own(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the end of a batch of dispatches too."""
    import wgpu.backends.wgpu_native as native

    ones, device, passes = counter(bench), own(bench), list[bool]()
    with device.record() as recorded:
        for _ in range(2 * FIRST_BATCH + 3):
            ones.run(device)
    begin = native.GPUCommandEncoder.begin_compute_pass

    def seen(encoder: Any, **options: Any) -> Any:
        passes.append("timestamp_writes" in options)
        return begin(encoder, **options)

    monkeypatch.setattr(native.GPUCommandEncoder, "begin_compute_pass", seen)
    assert len(device.timings(recorded)) == len(passes) == 2 * FIRST_BATCH + 3
    assert all(passes)
    assert count(bench, ones) == 2 * FIRST_BATCH + 3


def test_equal_parameters_share_a_buffer(bench: Bench) -> None:
    ones, device = counter(bench), own(bench)
    for _ in range(5):
        ones.run(device)
    assert len(device._params) == 1
    assert count(bench, ones) == 5


def test_a_wait_ends_with_the_work(bench: Bench) -> None:
    device = own(bench)
    one, other = (whole(device.alloc(64 << 20)) for _ in range(2))
    for _ in range(16):
        device.copy(one, other)
    device.submit()
    device.settle()
    assert not device.poll(), "copies of a GiB take more than a moment"
    device.synchronize()
    assert device.poll()


def test_a_batch_is_submitted_while_the_next_one_is_encoded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ones, device = counter(bench), own(bench)
    queue = device._handle.queue
    native = queue.submit
    encoded = Event()

    def submit(buffers: Any) -> None:
        assert encoded.wait(10)
        native(buffers)

    monkeypatch.setattr(queue, "submit", submit)
    ones.run(device)
    device.submit()
    ones.run(device)
    encoded.set()
    assert count(bench, ones) == 2


def test_a_submission_that_fails_is_reported_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(buffers: Any) -> None:
        raise RuntimeError("refused")

    ones, device = counter(bench), own(bench)
    ones.run(device)
    with monkeypatch.context() as patch:
        patch.setattr(device._handle.queue, "submit", refuse)
        device.submit()
        with pytest.raises(LaunchError, match="refused"):
            device.synchronize()
    ones.run(device)
    assert count(bench, ones) == 1


def test_a_wait_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ones, device = counter(bench), own(bench)
    ones.run(device)
    device.timeout = 0.01
    monkeypatch.setattr(device, "poll", lambda: False)
    with pytest.raises(GpuTimeoutError, match="BITNET_GPU_TIMEOUT"):
        device.synchronize()


def test_a_download_that_took_too_long_can_be_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ones, device = counter(bench), own(bench)
    ones.run(device)
    with monkeypatch.context() as patch:
        patch.setattr(device, "poll", lambda: False)
        device.timeout = 0.01
        with pytest.raises(GpuTimeoutError):
            count(bench, ones)
    device.timeout = 60
    assert count(bench, ones) == 1


@pytest.mark.parametrize("mapped", [False, True])
def test_a_readback_that_nobody_waited_for_is_replaced(bench: Bench, mapped: bool) -> None:
    ones, device = counter(bench), own(bench)
    one, other = (whole(device.alloc(64 << 20)) for _ in range(2))
    for _ in range(4):  # takes a moment, so that the first readbacks are pending
        device.copy(one, other)
    found = np.zeros((4, 15), np.float32)
    reads = []
    for _ in range(4):
        ones.run(device)
        reads.append(device.read_async(ones.views["y"]))
        if mapped:
            device.synchronize()
    for row, read in zip(found[2:], reads[2:], strict=True):
        read(row.data.cast("B"))
    assert found[:, 0].tolist() == [0, 0, 3, 4]
    assert count(bench, ones) == 4


def test_a_lost_device_says_so(bench: Bench) -> None:
    device = own(bench.second())
    buffer = device.alloc(64)
    device._handle.destroy()
    with pytest.raises(DeviceLostError):
        device.download(whole(buffer), memoryview(bytearray(64)))
    with pytest.raises(DeviceLostError):
        device.alloc(64)
    device.close()


def test_after_a_loss_the_adapter_can_be_opened_again(bench: Bench) -> None:
    with load(device="webgpu") as model:
        before = model.generate("Once upon a time", max_tokens=12)
        lost = model.device
        assert isinstance(lost, WebGpuDevice)
        lost._handle.destroy()
        with pytest.raises(DeviceLostError):
            model.generate("Once upon a time", max_tokens=12)
    with load(device="webgpu") as model:
        assert model.generate("Once upon a time", max_tokens=12).tokens == before.tokens


def test_what_wgpu_refuses_is_typed(bench: Bench) -> None:
    device = own(bench)
    layout = counter(bench).kernel.layout
    with pytest.raises(LaunchError, match="webgpu") as caught, checked("submit", "x"):
        device._handle.create_bind_group(layout=layout, entries=[])
    assert caught.value.code == "GPUValidationError"
    assert "bind" in caught.value.message.lower(), caught.value.message
    ones = counter(bench)
    ones.run(device)
    assert count(bench, ones) == 1, "and the device goes on"


def test_tables_over_the_binding_limit_are_split(bench: Bench) -> None:
    """A model whose head and matrices are bound in parts generates the same tokens."""
    with load(device="numpy") as model:
        expected = model.generate("Once upon a time", max_tokens=12).tokens
    opened = open_model(Path(str(files("bitnet_core") / "data" / "stories.gguf")))
    device = WebGpuDevice(by_index(usable(), bench.index, "webgpu"))
    device.info = replace(device.info, max_binding=64 << 10)
    summary = BackendStartupSummary(DeviceRequest("webgpu", device.info.index), ("webgpu",), device.info)
    options = EngineOptions("f16", context=64, max_sequences=1)
    with Model(opened, load_tokenizer(opened.tokenizer), device, summary, options) as model:
        assert model.generate("Once upon a time", max_tokens=12).tokens == expected
        (step,) = [one for name, one in model.engine.recordings().items() if name.startswith("greedy")]
        assert min(step.counts["embed_rows"], step.counts["matmul_dense"]) > 1
        assert max(view.nbytes for launch in step.launches for view in launch.views) <= 64 << 10


def test_no_room_says_how_much(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    device = own(bench)
    limit = device.info.max_allocation
    with pytest.raises(OutOfMemoryError) as caught:
        device.alloc(limit + 1)
    assert caught.value.requested == limit + 1

    def full(**_: object) -> None:
        raise module().GPUOutOfMemoryError("Out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(device._handle, "create_buffer", full)
        with pytest.raises(OutOfMemoryError, match="cannot allocate 4,096 bytes") as caught:
            device.alloc(4096)
    assert (caught.value.requested, caught.value.code) == (4096, "GPUOutOfMemoryError")
    view = whole(bench.alloc(8))
    bench.write(view, np.arange(8, dtype=np.uint8))
    assert bench.read(view).tolist() == list(range(8))

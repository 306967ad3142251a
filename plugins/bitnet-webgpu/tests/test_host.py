"""What the host does for a token, what it keeps, and how errors and waits end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from bitnet_core.api import load
from bitnet_core.errors import BackendUnavailableError, DeviceLostError, GpuTimeoutError, OutOfMemoryError
from bitnet_core.hal.device import whole
from bitnet_core.testing.areas.recordings import count, counter
from bitnet_core.testing.workbench import Bench
from bitnet_webgpu.device import WebGpuDevice
from bitnet_webgpu.plugin import WebGpuBackend
from bitnet_webgpu.recording import BATCH, FIRST_BATCH


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    backend = WebGpuBackend()
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


def counting(device: WebGpuDevice, calls: Counter[str]) -> None:
    """Count the native calls of the hot path."""
    for name in ("_set_pipeline", "_set_group", "_dispatch"):

        def counted(*args: object, native: object = getattr(device.queue, name), name: str = name) -> None:
            calls[name] += 1
            native(*args)  # type: ignore[operator]  # a native function

        setattr(device.queue, name, counted)
    submit = device.queue.submit

    def submitted(*, writes: bool = False) -> None:
        calls["submit"] += device.queue._encoder is not None
        submit(writes=writes)

    device.queue.submit = submitted  # type: ignore[method-assign]  # to be seen


def test_a_token_costs_three_native_calls_a_dispatch(bench: Bench) -> None:
    with load(device="webgpu") as model:
        model.generate("Once upon a time", max_tokens=40)  # everything compiled and recorded
        (step,) = [one for name, one in model.engine.recordings().items() if name.startswith("greedy")]
        calls: Counter[str] = Counter()
        device = model.device
        assert isinstance(device, WebGpuDevice)
        counting(device, calls)
        tokens = 20
        model.engine._runner.launcher.replay(step, tokens)  # type: ignore[union-attr]  # there is one now
        device.synchronize()
        dispatches = tokens * len(device._recordings[id(step.recording)].native)
    assert calls["_set_pipeline"] == calls["_set_group"] == calls["_dispatch"] == dispatches
    assert calls["submit"] <= 2 + dispatches // FIRST_BATCH
    assert calls["submit"] < tokens, "several tokens share a submission"
    assert BATCH > FIRST_BATCH


def test_equal_parameters_share_a_buffer(bench: Bench) -> None:
    ones, device = counter(bench), own(bench)
    for _ in range(5):
        ones.run(device)
    assert len(device.binder._params) == 1
    assert count(bench, ones) == 5


def test_a_wait_is_bounded(bench: Bench) -> None:
    ones, device = counter(bench), own(bench)
    ones.run(device)
    device.timeout = 0.01
    with pytest.raises(GpuTimeoutError, match="BITNET_GPU_TIMEOUT"):
        device.queue.wait(lambda: False)


def test_a_download_that_took_too_long_can_be_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ones, device = counter(bench), own(bench)
    ones.run(device)
    with monkeypatch.context() as patch:
        patch.setattr(device.queue, "poll", lambda: False)
        device.timeout = 0.01
        with pytest.raises(GpuTimeoutError):
            count(bench, ones)
    device.timeout = 60
    assert count(bench, ones) == 1


def test_a_lost_device_says_so(bench: Bench) -> None:
    device = own(bench.second())
    buffer = device.alloc(64)
    device._handle.destroy()
    with pytest.raises(DeviceLostError):
        device.download(whole(buffer), memoryview(bytearray(64)))
    with pytest.raises(DeviceLostError):
        device.alloc(64)
    device.close()


def test_no_room_says_how_much(bench: Bench) -> None:
    device = own(bench)
    limit = device.info.max_allocation
    with pytest.raises(OutOfMemoryError) as caught:
        device.alloc(limit + 1)
    assert caught.value.requested == limit + 1
    view = whole(bench.alloc(8))
    bench.write(view, np.arange(8, dtype=np.uint8))
    assert bench.read(view).tolist() == list(range(8))

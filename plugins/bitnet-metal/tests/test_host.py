"""Work of the host per token, refusals, errors and bounded waits, on the emulated Metal."""

from __future__ import annotations

import mmap
import platform
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from bitnet_core.api import load
from bitnet_hal.device import MemoryKind, View, whole
from bitnet_hal.driver.word_transfers import PART
from bitnet_hal.errors import (
    BackendUnavailableError,
    DeviceLostError,
    GpuTimeoutError,
    OutOfMemoryError,
)
from bitnet_hal.testing.rules.recordings import count, counter
from bitnet_hal.testing.workbench import Bench
from bitnet_metal import driver
from bitnet_metal.device import MetalDevice
from bitnet_metal.errors import TABLE
from bitnet_metal.memory import PAGE, SMALL
from bitnet_metal.plugin import bitnet_backend
from bitnet_metal.recording import BATCH
from emulator.metal import MisuseError, State
from emulator.tables import Tables


@pytest.fixture
def bench(state: State) -> Iterator[Bench]:
    backend = bitnet_backend()
    (info,) = backend.devices()
    made = Bench(backend, info.index, info)
    yield made
    state.stuck = False
    made.close()


def own(bench: Bench) -> MetalDevice:
    device = bench.device
    assert isinstance(device, MetalDevice)
    return device


@pytest.mark.parametrize("family", [7, 9])
def test_a_token_costs_a_few_calls_and_shares_its_command_buffer(state: State, family: int) -> None:
    state.family = family
    with load(device="metal") as model:
        said = model.generate("Once", max_tokens=6).text  # everything compiled and recorded
        (step,) = [one for name, one in model.engine.recordings().items() if name.startswith("greedy")]
        device = model.device
        assert isinstance(device, MetalDevice)
        recorded = device._recordings[id(step.recording)].native
        device.synchronize()
        state.calls.clear()
        tokens = 6
        model.engine.worker.launcher.replay(step, tokens)
        device.synchronize()
    with load(device="numpy") as model:
        assert said == model.generate("Once", max_tokens=6).text
    calls = dict(state.calls)
    committed, waited = calls["commit"], calls.pop("status")
    assert calls["executeCommandsInBuffer:withRange:"] == tokens
    assert committed <= 2 + tokens * recorded.count // BATCH
    assert committed < tokens, "several tokens share a command buffer"
    touched = 2 * len(recorded.pipelines) if family < 9 else 0
    assert sum(calls.values()) <= 3 * tokens + committed * (5 + touched), calls
    assert waited <= committed + 2


def test_recordings_without_indirect_command_buffers(bench: Bench, state: State) -> None:
    state.no_indirect = True
    ones = counter(bench)
    with bench.device.record() as recording:
        for _ in range(3):
            ones.run(bench.device)
    assert recording.native is None
    bench.device.replay(recording)
    assert count(bench, ones) == 3


def test_an_indirect_command_that_touches_what_is_not_resident_faults(bench: Bench) -> None:
    ones, device = counter(bench), own(bench)
    with device.record() as recording:
        ones.run(device)
    del recording.native.resources[0]
    device.replay(recording)
    with pytest.raises(DeviceLostError, match="3"):
        device.synchronize()


def test_a_wait_is_bounded(bench: Bench, state: State) -> None:
    ones, device = counter(bench), own(bench)
    ones.run(device)
    device.timeout, state.stuck = 0.01, True
    with pytest.raises(GpuTimeoutError, match=r"0\.01 seconds"):
        device.synchronize()
    state.stuck = False
    assert count(bench, ones) == 1


@pytest.mark.parametrize(("code", "kind"), [(2, GpuTimeoutError), (8, OutOfMemoryError), (1, DeviceLostError)])
def test_errors_of_command_buffers(bench: Bench, state: State, code: int, kind: type[Exception]) -> None:
    ones, device = counter(bench), own(bench.second())
    buffer = device.alloc(16)
    device.synchronize()
    state.fails.append(code)
    device.alloc(2 * SMALL)  # it is private, and zeroed by the GPU
    with pytest.raises(kind, match=f"fails with {code}"):
        device.synchronize()
    if kind is DeviceLostError:
        with pytest.raises(DeviceLostError):
            device.upload(whole(buffer), memoryview(bytes(16)))
    else:
        device.upload(whole(buffer), memoryview(bytes(16)))
    device.close()
    ones.run(bench.device)
    assert count(bench, ones) == 1


def test_the_table_of_errors_is_whole(tables: Tables) -> None:
    names = {
        (name.removeprefix("MTLCommandBufferError"), value)
        for name, value in tables.values.items()
        if name.startswith("MTLCommandBufferError") and "Option" not in name
    }
    assert {(name, code) for code, (_, _, name) in TABLE.items()} == names - {
        ("Blacklisted", 4)
    }  # AccessRevoked's old name


def test_the_working_set_is_the_limit(bench: Bench, state: State) -> None:
    device = own(bench)
    state.working_set = state.allocated + (8 << 20)
    kept = device.alloc(6 << 20)
    with pytest.raises(OutOfMemoryError) as caught:
        device.alloc(4 << 20)
    assert caught.value.requested == 4 << 20
    assert 0 < caught.value.free <= 2 << 20
    device.free(kept)
    device.synchronize()
    device.alloc(4 << 20)


def test_large_buffers_are_private_and_small_ones_shared(bench: Bench) -> None:
    device = own(bench)
    assert device.alloc(SMALL).host
    assert not device.alloc(SMALL + 1).host
    assert device.alloc(SMALL + 1, MemoryKind.SHARED).host


@pytest.mark.parametrize(("offset", "size"), [(0, 3), (8, 4097), (4, PART + 5)])
def test_private_memory_takes_any_number_of_bytes(bench: Bench, offset: int, size: int) -> None:
    buffer = bench.alloc(2 * PART)
    sent = np.random.default_rng(size).integers(1, 256, size, dtype=np.uint8)
    bench.write(View(buffer, offset, size), sent)
    everything = bench.read(whole(buffer))
    assert (everything[offset : offset + size] == sent).all()
    assert everything.sum(dtype=np.int64) == sent.sum(dtype=np.int64), "the bytes around it are zeros still"


@pytest.mark.parametrize(("offset", "lent"), [(0, True), (32, True), (8, False)])
def test_mapped_memory_is_used_in_place(bench: Bench, offset: int, lent: bool) -> None:
    host = mmap.mmap(-1, 4 * PAGE)
    part = memoryview(host)[offset : offset + PAGE]
    buffer = own(bench).wrap(part)
    assert (buffer is not None) == lent
    if buffer is not None:
        part[3] = 77
        assert bench.read(whole(buffer))[3] == 77
        bench.device.free(buffer)


@pytest.mark.parametrize("change", [{"family": 0}, {"family": 6}, {"unified": False}])
def test_other_gpus_are_left_out(state: State, change: dict[str, int]) -> None:
    vars(state).update(change)
    with pytest.raises(BackendUnavailableError, match="M1 or later") as caught:
        bitnet_backend().devices()
    assert "bitnet-webgpu" in caught.value.hint


def without_metal(monkeypatch: pytest.MonkeyPatch, version: str = "") -> None:
    monkeypatch.setitem(sys.modules, "Metal", None)
    monkeypatch.setattr(platform, "mac_ver", lambda: (version, ("", "", ""), ""))
    driver.module.cache_clear()


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Forget the loaded Metal after the test."""
    yield
    driver.module.cache_clear()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("system", "version", "words"),
    [("linux", "", "a part of macOS"), ("darwin", "14.1", "pyobjc cannot be imported"), ("darwin", "12.6", "too old")],
)
def test_why_there_is_no_metal(monkeypatch: pytest.MonkeyPatch, system: str, version: str, words: str) -> None:
    without_metal(monkeypatch, version)
    monkeypatch.setattr(sys, "platform", system)
    with pytest.raises(BackendUnavailableError, match=words) as caught:
        bitnet_backend().devices()
    assert caught.value.hint


def test_the_stand_in_checks_calls(bench: Bench, state: State) -> None:
    device = own(bench)._handle
    for wrong in (
        lambda: device.newBufferWithLenght_options_(16, 0),  # a selector that is not there
        lambda: device.newBufferWithLength_options_(16),  # too few arguments
        lambda: device.newBufferWithLength_options_(16.0, 0),  # of another type
        lambda: device.newBufferWithLength_options_(-1, 0),  # NSUInteger
        lambda: device.newLibraryWithSource_options_error_("", None, "error"),  # an out-argument
        lambda: device.newCommandQueueWithMaxCommandBufferCount_(4).commandBuffer(),  # outside of an autorelease pool
        lambda: device.newBufferWithBytes_length_options_(b"abc", 16, 0),  # fewer bytes than said
    ):
        with pytest.raises(MisuseError):
            wrong()
    state.extra.clear()  # as pyobjc is without what driver.py registers
    with pytest.raises(MisuseError, match="setConstantValue"):
        sys.modules["Metal"].MTLFunctionConstantValues.alloc().init().setConstantValue_type_atIndex_(b"1234", 33, 0)
    driver.module.cache_clear()
    assert driver.module() is sys.modules["Metal"]

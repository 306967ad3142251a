"""Kernel sources as one string, bounded waits and messages of errors."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bitnet_hal import waiting
from bitnet_hal.device import DeviceType, Tuning, whole
from bitnet_hal.driver.sources import source_text, with_includes
from bitnet_hal.errors import GpuTimeoutError, UnsupportedError
from bitnet_hal.families.opencl_c import program_source
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launcher import Launcher
from bitnet_hal.ownership import QueuedWork
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.waiting import multiply_adds, ready_within


def test_includes_come_once_and_the_first_folder_wins(tmp_path: Path) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir()
    shared.mkdir()
    (own / "vendor.h").write_text("ours\n")
    (shared / "vendor.h").write_text("theirs\n")
    (shared / "parts.h").write_text('#include "vendor.h"\nparts\n')
    (shared / "kernel.cu").write_text('#include "vendor.h"\n#include "parts.h"\nkernel\n')
    text = source_text((own, shared), "kernel.cu", {"B": 2, "A": 1}, backend="toy")
    assert text == "#define A 1\n#define B 2\nours\nparts\nkernel\n"
    assert with_includes((shared,), "kernel.cu", backend="toy") == "theirs\nparts\nkernel\n"
    with pytest.raises(UnsupportedError, match="no kernel source other"):
        source_text((own, shared), "other.cu", {}, backend="toy")


@pytest.mark.parametrize("workspace", [0, 16])
def test_a_program_in_opencl_c(tmp_path: Path, workspace: int) -> None:
    """Arguments are buffers and a struct of offsets, or pointers."""
    (tmp_path / "prelude.clh").write_text("prelude\n")
    (tmp_path / "embed_rows_few.cl").write_text("kernel\n")
    spec = CATALOGUE["embed_rows"]
    launch = spec, {"DTYPE": 1}, Tuning({"TILE_N": 4}, "few", {"GROUP": 8}, workspace)
    whole, pointers = (program_source((tmp_path,), *launch, pointers=which) for which in (False, True))
    for text in (whole, pointers):
        assert text.endswith("#define DTYPE 1\n#define GROUP 8\n#define TILE_N 4\nprelude\nkernel\n")
        assert "const uchar *table_buffer" in text
        assert "__global uchar *x_buffer" in text
        assert ("__global uchar *workspace_buffer = 0;" in text) == (not workspace)
    assert whole.startswith("typedef struct { ulong table_offset;")
    assert "const uint hidden = launch.hidden;" in whole
    assert pointers.startswith("#define ARGUMENTS __global const uchar *table_buffer")
    assert "const uint hidden" in pointers.partition("#define PARAMETERS")[0]
    assert "const ulong table_offset = 0;" in pointers


def test_a_wait_ends_when_it_is_ready_or_too_late() -> None:
    answers = iter((False, False, True))
    assert ready_within(5, lambda: next(answers))
    assert not ready_within(0.01, lambda: False)


def test_a_wait_polls_less_often_while_the_device_has_further_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now, polls = [100.0], [0]

    def nap(seconds: float) -> None:
        now[0] += seconds + 50e-6  # the least that a sleep takes

    def ready() -> bool:
        polls[0] += 1
        return now[0] > 100.01

    monkeypatch.setattr(waiting.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(waiting.time, "sleep", nap)
    assert ready_within(5, ready, ahead=True)
    assert polls[0] < 50
    assert now[0] < 100.0115
    now[0], polls[0] = 100.0, 0
    assert ready_within(5, ready)
    assert polls[0] > 100


def test_a_wait_for_a_gpu_does_not_sleep_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleep takes longer than a poll; another thread gets the interpreter's lock all the same."""
    naps: list[float] = []
    counted = [0]
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            counted[0] += 1

    monkeypatch.setattr(waiting.time, "sleep", naps.append)
    monkeypatch.setattr(waiting, "SPIN", 0.2)
    other = threading.Thread(target=count)
    other.start()
    try:
        assert not ready_within(0.1, lambda: False, spins=True)
    finally:
        done.set()
        other.join()
    assert not naps
    assert counted[0] > 1000
    assert not ready_within(0.01, lambda: False)
    assert naps


def test_a_wait_of_a_device_is_an_error_when_it_is_too_late() -> None:
    device = NumpyDevice()
    device.timeout = 0.01
    device._until(lambda: True, "wait")
    with pytest.raises(GpuTimeoutError, match=r"not done after 0\.01 s \(during wait\).*BITNET_GPU_TIMEOUT"):
        device._until(lambda: False, "wait")


def test_a_wait_may_take_longer_the_more_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """512 rows of a model of 8 billion weights on a GPU of 100 billion multiply-adds a second are no hang."""
    now = [100.0]
    monkeypatch.setattr(waiting.time, "perf_counter", lambda: now[0])
    work = QueuedWork(DeviceType.INTEGRATED)
    assert work.limit == 5
    params = {"rows": 512, "outs": 4096, "width": 4096, "y_stride": 4096, "y_first": 0}
    product = multiply_adds(CATALOGUE["matmul_ternary"], CATALOGUE["matmul_ternary"].pack(params))
    assert product == 512 * 4096 * 4096
    launches = round(512 * 8e9 / product)
    for _ in range(launches):
        work.add(product)
    assert 60 < work.limit < 600
    now[0] += 41
    work.finish(work.queued)
    assert work.limit == 5


def test_the_limit_of_a_fast_device_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(waiting.time, "perf_counter", lambda: now[0])
    work = QueuedWork(DeviceType.GPU)
    work.add(4e12)
    assert work.limit > 60
    now[0] += 0.05
    work.finish(work.queued)
    for _ in range(2):  # two steps are queued, and the first is read
        work.add(4e12)
    assert work.limit == pytest.approx(5 + 2 * 20 * 0.05)
    now[0] += 0.05
    work.finish(work.queued - 4e12)
    assert work.limit == pytest.approx(5 + 20 * 0.05)


def test_launches_and_replays_count_until_they_are_waited_for() -> None:
    device = NumpyDevice()
    launcher = Launcher(device)
    spec = CATALOGUE["matmul_dense"]
    x, w, y = (whole(device.alloc(4 * size)) for size in (2 * 128, 16 * 128, 2 * 16))
    params = {"rows": 2, "outs": 16, "width": 128, "y_stride": 16, "y_first": 0}
    launch = launcher.prepare(spec, params, (x, w, y), {"DTYPE": 0})
    each = 2 * 16 * 128
    launcher.run([launch])
    recorded = launcher.record([launch, launch])
    assert device._work.queued - device._work.done == each
    launcher.replay(recorded, 3)
    assert device._work.queued - device._work.done == 7 * each
    assert device.timeout > 5
    device.synchronize()
    assert (device._work.queued, device.timeout) == (7 * each, 5)


def test_replays_are_queued_by_one_call_on_devices_that_offer_it() -> None:
    class Repeating(NumpyDevice):
        def __init__(self) -> None:
            super().__init__(replace(numpy_info(), features=frozenset({"replay-many"})))
            self.asked: list[int] = []

        def _replay_many(self, recording: Any, times: int) -> None:
            self.asked.append(times)
            super()._replay_many(recording, times)

    device = Repeating()
    launcher = Launcher(device)
    spec = CATALOGUE["matmul_dense"]
    x, w, y = (whole(device.alloc(4 * size)) for size in (2 * 128, 16 * 128, 2 * 16))
    params = {"rows": 2, "outs": 16, "width": 128, "y_stride": 16, "y_first": 0}
    recorded = launcher.record([launcher.prepare(spec, params, (x, w, y), {"DTYPE": 0})])
    launcher.replay(recorded, 3)
    assert device.asked == [3]
    assert launcher.counts["matmul_dense"] == 3
    assert device._work.queued == 3 * 2 * 16 * 128


def test_launches_with_equal_parameters_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = NumpyDevice()
    launcher, asked = Launcher(device), []
    spec = CATALOGUE["rms_norm"]
    views = [whole(device.alloc(4096)) for _ in spec.bindings]
    choose = device.tuning
    monkeypatch.setattr(device, "tuning", lambda *given: asked.append(1) or choose(*given))
    for rows in (1, 1, 2, 2, 1):
        params = {param.name: 16 if param.kind == "u32" else 1e-5 for param in spec.params} | {"rows": rows}
        launch = launcher.prepare(spec, params, views)
        assert spec.unpack(launch.params)["rows"] == rows
    assert len(asked) == 2
    launcher.tilings = {}  # measured anew
    launcher.prepare(spec, params, views)
    assert len(asked) == 3

"""Devices that do not check lifetime or ownership: the rule meant for each fault rejects it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from bitnet_hal.device import Kernel, MemoryKind, View, whole
from bitnet_hal.kernels.types import Grid
from bitnet_hal.reference import describe
from bitnet_hal.reference.device import NumpyBuffer, NumpyDevice


class Late(NumpyDevice):
    """A correct device that runs queued work only when a call must wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[Any] = []

    def _run(self, launch: Any) -> None:
        self.queue.append(launch)

    def _wait(self) -> None:
        for launch in self.queue:
            super()._run(launch)
        self.queue.clear()

    def _upload(self, buffer: NumpyBuffer, offset: int, source: memoryview) -> None:
        self._wait()
        super()._upload(buffer, offset, source)

    def _download(self, buffer: NumpyBuffer, offset: int, target: memoryview) -> None:
        self._wait()
        super()._download(buffer, offset, target)

    def _copy(self, *operands: Any) -> None:
        self._wait()
        super()._copy(*operands)

    def _free(self, buffer: NumpyBuffer) -> None:
        self._wait()
        super()._free(buffer)

    def _timings(self, recording: Any) -> list[float]:
        self._wait()
        times = super()._timings(recording)
        self._wait()
        return times


class FreesAtOnce(Late):
    def _free(self, buffer: NumpyBuffer) -> None:
        buffer.data[:] = 0xEE


class ForgetsQueuedReplays(Late):
    def _forget(self, recording: Any) -> None:
        self.queue = [launch for launch in self.queue if launch not in recording.launches]


class FirstParameters(NumpyDevice):
    """Every launch of a kernel in a recording uses the parameters of the first one."""

    def _replay(self, recording: Any) -> None:
        first: dict[int, bytes] = {}
        for launch in recording.launches:
            self._run(replace(launch, params=first.setdefault(id(launch.kernel), launch.params)))


class FirstKernel(NumpyDevice):
    """Every launch with the same number of bindings uses the kernel of the first one."""

    def _replay(self, recording: Any) -> None:
        first: dict[int, Any] = {}
        for launch in recording.launches:
            self._run(replace(launch, kernel=first.setdefault(len(launch.params), launch.kernel)))


class RecordsUploads(NumpyDevice):
    def _upload(self, buffer: NumpyBuffer, offset: int, source: memoryview) -> None:
        super()._upload(buffer, offset, source)
        if self._recording is not None:
            self.__dict__.setdefault("uploads", []).append((buffer, offset, bytes(source)))

    def _replay(self, recording: Any) -> None:
        for buffer, offset, source in self.__dict__.get("uploads", []):
            super()._upload(buffer, offset, memoryview(source))
        super()._replay(recording)


class KeepsCopiesBack(NumpyDevice):
    def _copy(self, *operands: Any) -> None:
        if self._recording is None:
            super()._copy(*operands)


class AllowsAnythingInRecord(NumpyDevice):
    def _begin(self, operation: str, *, recording: bool = True) -> None:
        super()._begin(operation)


class NeverStale(NumpyDevice):
    def _outdate(self, gone: object) -> None:
        pass


class ReleasedKernelsRun(NumpyDevice):
    def release(self, kernel: Kernel) -> None:
        self._outdate(kernel)


class ClosedRecordingsReplay(NumpyDevice):
    def forget(self, recording: Any) -> None:
        pass


class WorksAfterClose(NumpyDevice):
    def close(self) -> None:
        super().close()
        self._closed = False


class AnyBuffer(NumpyDevice):
    def _own(self, buffer: Any) -> Any:
        if not hasattr(buffer, "data"):
            raise ValueError("not a buffer")
        return buffer


class AnyKernel(NumpyDevice):
    def _own_kernel(self, kernel: Any) -> Any:
        return kernel


class AnyRecording(NumpyDevice):
    def _own_recording(self, recording: Any) -> Any:
        return recording


class OneThread(NumpyDevice):
    def _enter_thread(self) -> None:
        raise RuntimeError("the context is another thread's")


class FreeOfOneThread(NumpyDevice):
    """`close` fails outside the thread that opened the device."""

    def __init__(self) -> None:
        super().__init__()
        self.first = threading.current_thread()

    def _close(self) -> None:
        if threading.current_thread() is not self.first:
            raise RuntimeError("the context is another thread's")


class OverlapsAccepted(NumpyDevice):
    """Read operands are copied first, so that overlaps do no harm."""

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        apart = list(views)
        for i, binding in enumerate(kernel.spec.bindings):
            if binding.access == "r":
                apart[i] = whole(self.alloc(views[i].nbytes, MemoryKind.DEVICE))
                self.copy(views[i], apart[i])
        super().launch(kernel, grid, apart, params)


class ReadViewsMayNotOverlap(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        if len({id(view.buffer) for view in views}) < len(views):
            raise ValueError("two views of one buffer")
        super().launch(kernel, grid, views, params)


MUTANTS: list[tuple[type, str, dict[str, Any]]] = [
    (FreesAtOnce, "test_a_buffer_may_be_freed_while_work_is_queued", {}),
    (ForgetsQueuedReplays, "test_a_recording_may_be_closed_while_it_is_queued", {}),
    (FirstParameters, "test_each_launch_has_its_own_kernel_and_parameters", {}),
    (FirstKernel, "test_each_launch_has_its_own_kernel_and_parameters", {}),
    (RecordsUploads, "test_transfers_inside_record_take_effect_at_once", {}),
    (KeepsCopiesBack, "test_transfers_inside_record_take_effect_at_once", {}),
    *(
        (AllowsAnythingInRecord, "test_record_refuses_what_it_cannot_keep", {"call": call})
        for call in ("free", "release", "replay", "synchronize", "record")
    ),
    (NeverStale, "test_a_recording_of_what_is_gone_is_refused", {"gone": "buffer"}),
    (NeverStale, "test_a_recording_of_what_is_gone_is_refused", {"gone": "kernel"}),
    (ReleasedKernelsRun, "test_a_recording_of_what_is_gone_is_refused", {"gone": "kernel"}),
    (ClosedRecordingsReplay, "test_a_recording_of_what_is_gone_is_refused", {"gone": "recording"}),
    (WorksAfterClose, "test_nothing_works_after_close", {}),
    (AnyBuffer, "test_what_another_device_made_is_refused", {}),
    (AnyKernel, "test_what_another_device_made_is_refused", {}),
    (AnyRecording, "test_what_another_device_made_is_refused", {}),
    (OneThread, "test_calls_may_come_from_any_thread", {}),
    (FreeOfOneThread, "test_calls_may_come_from_any_thread", {}),
    (OverlapsAccepted, "test_written_views_that_overlap_are_refused", {}),
    (ReadViewsMayNotOverlap, "test_written_views_that_overlap_are_refused", {}),
]


@pytest.mark.parametrize(("device", "rule", "case"), MUTANTS, ids=[f"{d.__name__}-{r}" for d, r, _ in MUTANTS])
def test_a_faulty_device_is_rejected(device: type, rule: str, case: dict[str, Any], judge: Callable[..., str]) -> None:
    assert judge(NumpyDevice, rule, **case) == ""
    assert judge(Late, rule, **case) == "", "a device that works late is sound"
    assert judge(device, "test_round_trip", size=64) == ""
    assert judge(device, rule, **case)


def test_a_grid_that_is_too_large_must_be_refused(
    judge: Callable[..., str], backend_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = replace(describe.numpy_info(), max_grid=(0, 9, 9))
    rule = "test_a_grid_beyond_the_largest_is_refused"
    assert judge(backend_of(lambda: NumpyDevice(limited), limited), rule) == ""

    class AnyGrid(NumpyDevice):
        def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
            super().launch(kernel, (1, 1, 1), views, params)

    assert judge(backend_of(lambda: AnyGrid(limited), limited), rule)

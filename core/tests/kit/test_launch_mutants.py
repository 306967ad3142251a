"""Faulty launches and recordings: each is rejected by the rule meant for it, while a plain launch is accepted."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from bitnet_core.hal.device import Grid, Kernel, View, whole
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_core.kernels.spec import KernelSpec
from bitnet_core.reference.device import NumpyDevice, NumpyRecording, numpy_info
from bitnet_core.testing.cases.registry import all_cases

CASES = {case.id: case for case in all_cases()}
Launch = tuple[Kernel, Grid, Sequence[View], bytes]


class WritesPastTheEnd(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params)
        self._bytes(whole(views[-1].buffer))[views[-1].offset + views[-1].nbytes] = 1


class WritesBeforeTheStart(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params)
        self._bytes(whole(views[-1].buffer))[views[-1].offset - 1] = 1


class ScratchInAnInput(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params)
        self._bytes(views[0])[-1] ^= 1


class RunsWhileRecording(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params)
        if self._recording:
            self._recording.launches[-1]()


class ReplaysOnce(NumpyDevice):
    def replay(self, recording: Any) -> None:
        super().replay(recording)
        recording.launches = recording.launches[:0] or [lambda: None] if recording.launches else []


class KeepsInputsOfRecordTime(NumpyDevice):
    """Read-only operands as they were when the launch was recorded."""

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        if self._recording:
            kept = [
                v if b.access != "r" else self._snapshot(v) for b, v in zip(kernel.spec.bindings, views, strict=True)
            ]
            views = kept
        super().launch(kernel, grid, views, params)

    def _snapshot(self, view: View) -> View:
        return whole(self._keep(self._bytes(view).copy(), view.buffer.kind))


class Deferred(NumpyDevice):
    """Recordings as lists of launches that subclasses replay in wrong ways."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: dict[NumpyRecording, list[Launch]] = {}

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params)
        if self._recording:
            self.lists.setdefault(self._recording, []).append((kernel, grid, self.kept(views), params))

    def kept(self, views: Sequence[View]) -> Sequence[View]:
        return list(views)

    def replay(self, recording: Any) -> None:
        for launch in self.lists.get(recording, []):
            self.launch(*launch)


class KeepsTheCallersList(Deferred):
    def kept(self, views: Sequence[View]) -> Sequence[View]:
        return views


class AllRecordingsAreOne(Deferred):
    def replay(self, recording: Any) -> None:
        for launches in self.lists.values():
            for launch in launches:
                self.launch(*launch)


class ReplaysWithoutBarriers(Deferred):
    """Every launch reads its operands as they were when the replay began."""

    def replay(self, recording: Any) -> None:
        launches = self.lists.get(recording, [])
        old = {view.buffer: self._bytes(whole(view.buffer)).copy() for _, _, views, _ in launches for view in views}
        for kernel, grid, views, params in launches:
            stale = []
            for binding, view in zip(kernel.spec.bindings, views, strict=True):
                if binding.access != "r":
                    stale.append(view)
                    continue
                stale.append(View(self._keep(old[view.buffer], view.buffer.kind), view.offset, view.nbytes))
            self.launch(kernel, grid, stale, params)


class ReplaysWhenNextAsked(NumpyDevice):
    """A replay waits for the next replay or download."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Any] = []

    def replay(self, recording: Any) -> None:
        self.waiting.append(recording)

    def download(self, src: View, dst: memoryview) -> None:
        for recording in self.waiting:
            super().replay(recording)
        self.waiting.clear()
        super().download(src, dst)


class StepBufferFrozen(Deferred):
    """Buffers that a launch both reads and writes start each replay as they were when recorded."""

    def kept(self, views: Sequence[View]) -> Sequence[View]:
        self.first = {view.buffer: self._bytes(whole(view.buffer)).copy() for view in views}
        return list(views)

    def replay(self, recording: Any) -> None:
        for kernel, grid, views, params in self.lists.get(recording, []):
            for binding, view in zip(kernel.spec.bindings, views, strict=True):
                if binding.name == "step":
                    self._bytes(whole(view.buffer))[:] = self.first[view.buffer]
            self.launch(kernel, grid, views, params)


class RecordingNeverEndsOnError(NumpyDevice):
    @contextmanager
    def record(self) -> Iterator[NumpyRecording]:
        self._recording = recording = NumpyRecording()
        yield recording
        self._recording = None


class CloseOnce(NumpyRecording):
    __slots__ = ("closed",)

    def close(self) -> None:
        if getattr(self, "closed", False):
            raise RuntimeError("closed twice")
        self.closed = True


class RecordingsCloseOnce(NumpyDevice):
    @contextmanager
    def record(self) -> Iterator[NumpyRecording]:
        self._recording = recording = CloseOnce()
        try:
            yield recording
        finally:
            self._recording = None


class RecordingsStay(NumpyDevice):
    """Each recording keeps 64 KiB for ever."""

    @contextmanager
    def record(self) -> Iterator[NumpyRecording]:
        kept = mmap.mmap(-1, 64 << 10)  # not from the heap, where it might take the place of something freed
        kept.write(bytes([1]) * len(kept))
        self.__dict__.setdefault("arena", []).append(kept)
        with super().record() as recording:
            yield recording


class UnalignedViewsAccepted(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, [View(v.buffer, v.offset // 64 * 64, v.nbytes) for v in views], params)


class ExtraViewsIgnored(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views[: len(kernel.spec.bindings)], params)


class ShortParamsFilledUp(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params.ljust(4 * len(kernel.spec.params), b"\0"))


class LongParamsCut(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params[: 4 * len(kernel.spec.params)])


class ShortViewsAccepted(NumpyDevice):
    """Views that are too short reach past their end."""

    unchecked = "r", "w", "rw"

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        values, longer = kernel.spec.unpack(params), list(views)
        for i, (binding, view) in enumerate(zip(kernel.spec.bindings, views, strict=False)):
            if binding.access in self.unchecked:
                nbytes = max(view.nbytes, binding.nbytes(values, kernel.constants))
                longer[i] = View(view.buffer, view.offset, nbytes)
        super().launch(kernel, grid, longer, params)


class ShortOutputsAccepted(ShortViewsAccepted):
    unchecked = "w", "rw"


class DeadAfterARefusal(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        try:
            super().launch(kernel, grid, views, params)
        except ValueError:
            self.launch = lambda *operands: None  # type: ignore[method-assign]  # the fault
            raise


class TuningMissing(NumpyDevice):
    def tuning(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> dict[str, int]:
        return {name: 1 for name in spec.tuning if name != "TILE_T"}


class GridOfOtherTuning(NumpyDevice):
    """The kernel is compiled for tiles of 64 outputs, the grid counts tiles of 128."""

    def tuning(
        self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]
    ) -> dict[str, int]:
        return dict.fromkeys(spec.tuning, 128)

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        values = kernel.spec.unpack(params)
        if kernel.spec.name == "matmul_ternary":
            values["outs"] = min(int(values["outs"]), 64 * grid[0])
        super().launch(kernel, grid, views, kernel.spec.pack(values))


class Timed(NumpyDevice):
    """A sound device with the feature "timings"."""

    def __init__(self) -> None:
        super().__init__(replace(numpy_info(), features=frozenset({"timings"})))
        self.names: dict[Any, list[str]] = {}

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params)
        if self._recording:
            self.names.setdefault(self._recording, []).append(kernel.spec.name)

    def timings(self, recording: Any) -> list[tuple[str, float]]:
        self.replay(recording)
        return [(name, 1e-6) for name in self.names[recording]]


class TimedWithoutRunning(Timed):
    def replay(self, recording: Any) -> None:
        pass


class TimedInAnyOrder(Timed):
    def timings(self, recording: Any) -> list[tuple[str, float]]:
        return sorted(super().timings(recording))


class TimedNothing(Timed):
    def timings(self, recording: Any) -> list[tuple[str, float]]:
        return [(name, 0.0) for name, _ in super().timings(recording)]


class Saving(NumpyDevice):
    """A sound device with the feature "saved-reads"."""

    def saved_reads(self, recording: Any) -> int:
        return 0


class SavesTooMuch(Saving):
    def saved_reads(self, recording: Any) -> int:
        return 1


class SavesByRunning(Saving):
    def saved_reads(self, recording: Any) -> int:
        self.replay(recording)
        return 0


PLAIN = "matmul_dense-f32-t2-n31-k256"
MUTANTS: list[tuple[type, str, dict[str, Any]]] = [
    (WritesPastTheEnd, "test_kernel", {"case": CASES["embed_rows-t1"]}),
    (WritesBeforeTheStart, "test_kernel", {"case": CASES["attention-f16-prompt"]}),
    (ScratchInAnInput, "test_kernel", {"case": CASES["rms_norm-t7-k128"]}),
    (GridOfOtherTuning, "test_kernel", {"case": CASES["matmul_ternary-t8-n65-k2560"]}),
    (RunsWhileRecording, "test_nothing_runs_before_replay", {}),
    (ReplaysOnce, "test_every_replay_runs_again", {}),
    (ReplaysOnce, "test_replays_need_no_wait_between_them", {}),
    (KeepsInputsOfRecordTime, "test_replay_reads_what_the_buffers_hold_now", {}),
    (KeepsTheCallersList, "test_a_recording_keeps_its_own_list_of_views", {}),
    (AllRecordingsAreOne, "test_two_recordings_interleaved", {}),
    (ReplaysWithoutBarriers, "test_launches_see_the_results_of_earlier_ones", {}),
    (ReplaysWhenNextAsked, "test_replays_and_direct_launches_keep_their_order", {}),
    (StepBufferFrozen, "test_decoding_needs_no_host", {}),
    (RecordingNeverEndsOnError, "test_an_error_while_recording_ends_it", {}),
    (RecordingsCloseOnce, "test_closing_a_recording", {}),
    (RecordingsStay, "test_recordings_leave_nothing_behind", {}),
    (UnalignedViewsAccepted, "test_a_launch_that_does_not_fit_is_refused", {"fault": "unaligned-view"}),
    (ExtraViewsIgnored, "test_a_launch_that_does_not_fit_is_refused", {"fault": "extra-view"}),
    (ShortParamsFilledUp, "test_a_launch_that_does_not_fit_is_refused", {"fault": "short-params"}),
    (LongParamsCut, "test_a_launch_that_does_not_fit_is_refused", {"fault": "long-params"}),
    *((ShortViewsAccepted, "test_views_that_are_too_short_are_refused", {"kernel": name}) for name in CATALOGUE),
    (ShortOutputsAccepted, "test_views_that_are_too_short_are_refused", {"kernel": "top_k"}),
    (DeadAfterARefusal, "test_a_launch_that_does_not_fit_is_refused", {"fault": "missing-view"}),
]


@pytest.mark.parametrize(("device", "rule", "case"), MUTANTS, ids=[f"{d.__name__}-{r}" for d, r, _ in MUTANTS])
def test_a_faulty_launch_is_rejected(device: type, rule: str, case: dict[str, Any], judge: Callable[..., str]) -> None:
    assert judge(NumpyDevice, rule, **case) == ""
    if rule != "test_kernel":
        assert judge(device, "test_kernel", case=CASES[PLAIN]) == ""
    assert judge(device, rule, **case)


@pytest.mark.parametrize("device", [TimedWithoutRunning, TimedInAnyOrder, TimedNothing])
def test_faulty_timings_are_rejected(device: type, judge: Callable[..., str], backend_of: Callable[..., Any]) -> None:
    info = replace(numpy_info(), features=frozenset({"timings"}))
    assert judge(backend_of(Timed, info), "test_timings") == ""
    assert judge(backend_of(device, info), "test_timings")


@pytest.mark.parametrize("device", [SavesTooMuch, SavesByRunning])
def test_faulty_saved_reads_are_rejected(
    device: type, judge: Callable[..., str], backend_of: Callable[..., Any]
) -> None:
    info = replace(numpy_info(), features=frozenset({"saved-reads"}))
    assert judge(backend_of(Saving, info), "test_saved_reads") == ""
    assert judge(backend_of(device, info), "test_saved_reads")


def test_a_missing_tuning_constant_is_named(judge: Callable[..., str]) -> None:
    verdict = judge(TuningMissing, "test_kernel", case=CASES[PLAIN])
    assert "Device.tuning gives no value for TILE_T" in verdict

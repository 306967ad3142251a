"""Faulty launches and recordings: the rule meant for each fault rejects it, and a plain launch is accepted."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from bitnet_hal.device import Kernel, Tuning, View, whole
from bitnet_hal.errors import KernelCompileError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.kernels.types import Grid
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyBuffer, NumpyDevice
from bitnet_hal.testing.cases.case import expected
from bitnet_hal.testing.cases.registry import all_cases
from bitnet_hal.testing.compare import check_outputs

CASES = {case.id: case for case in all_cases()}
CaseLaunch = tuple[Kernel, Grid, Sequence[View], bytes]


def contents(view: View) -> Any:
    """Return the bytes of a view as a writable u8 array."""
    buffer = view.buffer
    assert isinstance(buffer, NumpyBuffer)
    return buffer.data[view.offset : view.offset + view.nbytes]


class WritesPastTheEnd(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params)
        contents(whole(views[-1].buffer))[views[-1].offset + views[-1].nbytes] = 1


class WritesBeforeTheStart(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params)
        contents(whole(views[-1].buffer))[views[-1].offset - 1] = 1


class ScratchInAnInput(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params)
        contents(views[0])[-1] ^= 1


class RunsWhileRecording(NumpyDevice):
    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params)
        if self._recording:
            self._run(self._recording[-1])


class ReplaysOnce(NumpyDevice):
    def replay(self, recording: Any) -> None:
        super().replay(recording)
        recording.launches = ()


class KeepsInputsOfRecordTime(NumpyDevice):
    """Replays use the read-only operands as they were when the launch was recorded."""

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        if self._recording is not None:
            kept = [
                v if b.access != "r" else self._snapshot(v) for b, v in zip(kernel.spec.bindings, views, strict=True)
            ]
            views = kept
        super().launch(kernel, grid, views, params)

    def _snapshot(self, view: View) -> View:
        kept = whole(self.alloc(view.nbytes))
        contents(kept)[:] = contents(view)
        return kept


class Deferred(NumpyDevice):
    """Recordings as lists of launches, which subclasses replay wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: dict[Any, list[CaseLaunch]] = {}
        self.now: list[CaseLaunch] = []

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params)
        if self._recording is not None:
            self.now.append((kernel, grid, self.kept(views), params))

    def kept(self, views: Sequence[View]) -> Sequence[View]:
        return list(views)

    def _record(self, recording: Any) -> None:
        self.lists[recording] = self.now
        self.now = []

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
        old: dict[Any, View] = {}
        for buffer in {view.buffer for _, _, views, _ in launches for view in views}:
            old[buffer] = whole(self.alloc(buffer.nbytes))
            contents(old[buffer])[:] = contents(whole(buffer))
        for kernel, grid, views, params in launches:
            stale = []
            for binding, view in zip(kernel.spec.bindings, views, strict=True):
                if binding.access != "r":
                    stale.append(view)
                    continue
                stale.append(old[view.buffer].part(view.offset, view.nbytes))
            self.launch(kernel, grid, stale, params)


class ReplaysWhenNextAsked(NumpyDevice):
    """A replay is delayed until the next replay or download."""

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
    """Buffers that a launch reads and writes are reset before each replay to their contents when recorded."""

    def kept(self, views: Sequence[View]) -> Sequence[View]:
        self.first = {view.buffer: contents(whole(view.buffer)).copy() for view in views}
        return list(views)

    def replay(self, recording: Any) -> None:
        for kernel, grid, views, params in self.lists.get(recording, []):
            for binding, view in zip(kernel.spec.bindings, views, strict=True):
                if binding.name == "step":
                    contents(whole(view.buffer))[:] = self.first[view.buffer]
            self.launch(kernel, grid, views, params)


class RecordingNeverEndsOnError(NumpyDevice):
    @contextmanager
    def record(self) -> Iterator[Any]:
        self.under_way = super().record()
        yield self.under_way.__enter__()
        self.under_way.__exit__(None, None, None)


class RecordingsCloseOnce(NumpyDevice):
    def forget(self, recording: Any) -> None:
        if id(recording) not in self._recordings:
            raise RuntimeError("closed twice")
        super().forget(recording)


class RecordingsStay(NumpyDevice):
    """Each recording leaks 64 KiB."""

    @contextmanager
    def record(self) -> Iterator[Any]:
        kept = mmap.mmap(-1, 64 << 10)  # not from the heap, where freed memory might be reused
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
    """Views that are too short are extended past their end."""

    unchecked = "r", "w", "rw"

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        values = kernel.spec.unpack(params)
        longer = list(views)
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
    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        return Tuning({name: 1 for name in spec.tuning if name != "TILE_T"})


class GridOfOtherTuning(NumpyDevice):
    """The kernel is compiled for tiles of 64 outputs, the grid for tiles of 128."""

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        return Tuning(dict.fromkeys(spec.tuning, 128))

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        values = kernel.spec.unpack(params)
        if kernel.spec.name == "matmul_ternary":
            values["outs"] = min(int(values["outs"]), 64 * grid[0])
        super().launch(kernel, grid, views, kernel.spec.pack(values))


class TimedWithoutRunning(NumpyDevice):
    def _timings(self, recording: Any) -> list[float]:
        return [1e-6] * len(recording.launches)


class TimedInAnyOrder(NumpyDevice):
    def timings(self, recording: Any) -> list[tuple[str, float]]:
        return sorted(super().timings(recording))


class TimedInTheWrongUnit(NumpyDevice):
    def _timings(self, recording: Any) -> list[float]:
        return [1e-6 * seconds for seconds in super()._timings(recording)]


class TimedTooLong(NumpyDevice):
    def _timings(self, recording: Any) -> list[float]:
        return [1e6 * seconds for seconds in super()._timings(recording)]


class TimedNothing(NumpyDevice):
    def _timings(self, recording: Any) -> list[float]:
        return [0.0 for _ in super()._timings(recording)]


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
def test_faulty_timings_are_rejected(device: type, judge: Callable[..., str]) -> None:
    assert judge(NumpyDevice, "test_timings") == ""
    assert judge(device, "test_timings")


@pytest.mark.parametrize("device", [TimedInTheWrongUnit, TimedTooLong, TimedNothing])
def test_a_clock_that_cannot_be_believed_is_rejected(device: type, judge: Callable[..., str]) -> None:
    rule = "test_timings_agree_with_the_clock_on_the_wall"
    assert judge(NumpyDevice, rule) == ""
    assert judge(device, rule)


class Reports(NumpyDevice):
    """A device with sensors, and facts about kernels."""

    readings: ClassVar[dict[str, float]] = {"temperature": 61.0}
    used: ClassVar[dict[str, float]] = {"registers": 40, "occupancy": 0.5}

    def __init__(self) -> None:
        super().__init__(replace(numpy_info(), features=frozenset({"sensors", "kernel-resources"})))

    def _sensors(self) -> Mapping[str, float]:
        return self.readings

    def _kernel_resources(self, kernel: Any) -> Mapping[str, float]:
        return self.used


class ClockInHertz(Reports):
    readings: ClassVar[dict[str, float]] = {"clock": 1.98e9}


class UnknownSensor(Reports):
    readings: ClassVar[dict[str, float]] = {"fan": 40}


class OccupancyInPercent(Reports):
    used: ClassVar[dict[str, float]] = {"occupancy": 50}


class KnowsNothing(Reports):
    used: ClassVar[dict[str, float]] = {}


@pytest.mark.parametrize(
    ("device", "rule"),
    [
        (ClockInHertz, "test_sensors"),
        (UnknownSensor, "test_sensors"),
        (OccupancyInPercent, "test_kernel_resources"),
        (KnowsNothing, "test_kernel_resources"),
    ],
)
def test_wrong_reports_of_a_driver_are_rejected(device: type, rule: str, judge: Callable[..., str]) -> None:
    assert judge(Reports, rule) == ""
    assert judge(device, rule).startswith("AssertionError")


class RepeatsReplays(NumpyDevice):
    def __init__(self) -> None:
        super().__init__(replace(numpy_info(), features=frozenset({"replay-many"})))


class RepeatsOnce(RepeatsReplays):
    def _replay_many(self, recording: Any, times: int) -> None:
        self._replay(recording)


class RepeatsClosed(RepeatsReplays):
    def replay_many(self, recording: Any, times: int) -> None:
        if recording.launches:
            super().replay_many(recording, times)


@pytest.mark.parametrize("device", [RepeatsOnce, RepeatsClosed])
def test_wrong_numbers_of_replays_are_rejected(device: type, judge: Callable[..., str]) -> None:
    assert judge(RepeatsReplays, "test_many_replays") == ""
    assert judge(device, "test_many_replays")


class CompilesNotAll(NumpyDevice):
    def compile(self, spec: KernelSpec, constants: Mapping[str, int], tuning: Tuning) -> Any:
        if spec.name in ("top_k", "rms_norm"):
            raise KernelCompileError("no", kernel=spec.name, log=f"{spec.name}.c:3: what is this?")
        return super().compile(spec, constants, tuning)


def test_the_kernels_that_do_not_compile_are_named_first(judge: Callable[..., str]) -> None:
    assert judge(NumpyDevice, "test_every_kernel_compiles") == ""
    verdict = judge(CompilesNotAll, "test_every_kernel_compiles")
    assert verdict.splitlines()[0] == "AssertionError: 2 kernels do not compile: rms_norm, top_k"
    assert "rms_norm.c:3: what is this?" in verdict
    assert "top_k.c:3: what is this?" in judge(CompilesNotAll, "test_kernel_is_offered", kernel="top_k")


def test_a_wrong_integer_is_said_to_be_where_it_is() -> None:
    case = next(case for case in all_cases() if case.kernel == "top_k" and case.launch().params["k"] > 9)
    launch = case.launch()
    right = expected(case.spec, launch)
    wrong = {name: array.copy() for name, array in right.items()}
    k = int(launch.params["k"])
    wrong["ids"][k - 1] += 1
    with pytest.raises(AssertionError, match=f"first at row 0, column {k - 1}"):
        check_outputs(case, launch, right, wrong)


def test_a_missing_tuning_constant_is_named(judge: Callable[..., str]) -> None:
    verdict = judge(TuningMissing, "test_kernel", case=CASES[PLAIN])
    assert "matmul_dense: the tile {'TILE_N': 1} must have TILE_N, TILE_T" in verdict


class PoolOfSets(NumpyDevice):
    """Each recorded launch takes a binding set from a pool of a few thousand, and `close` does not return it."""

    sets = 5000

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params)
        self.sets -= self._recording is not None
        if self.sets < 0:
            raise MemoryError("the pool is empty")


class HoldsWhatWasClosed(NumpyDevice):
    recorded = 0

    def held_bytes(self) -> int:
        return self.recorded << 10

    @contextmanager
    def record(self) -> Iterator[Any]:
        with super().record() as recording:
            yield recording
        self.recorded += 1000


@pytest.mark.parametrize(("device", "said"), [(PoolOfSets, "pool is empty"), (HoldsWhatWasClosed, "on the device")])
def test_a_soak_finds_what_recordings_leave_behind(judge: Callable[..., str], device: type, said: str) -> None:
    rule = "test_ten_thousand_dispatches_in_recordings_that_come_and_go"
    assert said in judge(device, rule)


class SecondTuningIsWrong(NumpyDevice):
    def __init__(self) -> None:
        super().__init__(replace(numpy_info(), features=frozenset({"tunings"})))

    def tunings(self, spec: KernelSpec, constants: Mapping[str, int], params: Any) -> list[Tuning]:
        usual = self.tuning(spec, constants, params)
        return [usual, replace(usual, private={"WRONG": 1})]

    def launch(self, kernel: Kernel, grid: Grid, views: Sequence[View], params: bytes) -> None:
        super().launch(kernel, grid, views, params)
        if kernel.tuning.private and views[-1].nbytes:
            contents(views[-1])[0] ^= 64


class OwnTuningIsNotFirst(SecondTuningIsWrong):
    def tunings(self, spec: KernelSpec, constants: Mapping[str, int], params: Any) -> list[Tuning]:
        return super().tunings(spec, constants, params)[::-1]


class OffersOneTwice(SecondTuningIsWrong):
    def tunings(self, spec: KernelSpec, constants: Mapping[str, int], params: Any) -> list[Tuning]:
        return [self.tuning(spec, constants, params)] * 2


@pytest.mark.parametrize("device", [SecondTuningIsWrong, OwnTuningIsNotFirst, OffersOneTwice])
def test_a_wrong_tuning_on_offer_is_found(judge: Callable[..., str], device: type) -> None:
    rule = "test_every_tuning_on_offer_is_right"
    assert judge(device, rule, product="matmul_ternary").startswith("AssertionError")

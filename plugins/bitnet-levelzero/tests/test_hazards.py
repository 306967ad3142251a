"""The hazards of Level Zero, each as a device with one fault: the rules of the kit find it, as the driver of driver/ is
as unkind as a driver may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from bitnet_hal.device import DeviceInfo, View, whole
from bitnet_hal.errors import DeviceLostError, GpuError
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.launcher import Launcher
from bitnet_hal.testing import BackendConformance
from bitnet_hal.testing.workbench import Bench
from bitnet_levelzero import api
from bitnet_levelzero.device import SLOT, LevelZeroDevice
from bitnet_levelzero.memory import Context, LevelZeroBuffer
from bitnet_levelzero.recording import QueuedDevice

Fault = Callable[[pytest.MonkeyPatch], None]
Rule = Callable[[Bench], None]


class Kit(BackendConformance):
    __test__ = False
    backend = "level-zero"


@dataclass
class Opened:
    """A backend for the workbench that is open already."""

    device: LevelZeroDevice
    name: str = "level-zero"
    api: tuple[int, int] = (2, 0)

    def devices(self) -> list[DeviceInfo]:
        return [self.device.info]

    def open(self, index: int) -> LevelZeroDevice:
        return self.device


@pytest.fixture
def bench(device: LevelZeroDevice) -> Iterator[Bench]:
    bench = Bench(Opened(device), 0, device.info)
    yield bench
    bench.close()


class Driver:
    """The loader's functions, some of them others."""

    def __init__(self, **others: Callable[..., int]) -> None:
        self._others, self._lib = others, api.load().lib

    def __getattr__(self, name: str) -> Any:
        return self._others.get(name) or getattr(self._lib, name)


def no_barriers(patch: pytest.MonkeyPatch) -> None:
    """Remove all barriers: the driver then runs the unordered commands in reverse order."""
    patch.setattr(api.load(), "lib", Driver(zeCommandListAppendBarrier=lambda *arguments: 0))


def late_arguments(patch: pytest.MonkeyPatch) -> None:
    """Arguments are set when the list is closed, as if a launch captured them then; a kernel's first ones at once."""
    late: list[tuple[Any, ...]] = []
    seen: set[tuple[Any, int]] = set()
    set_argument, close = api.load().lib.zeKernelSetArgumentValue, QueuedDevice._close_list

    def flush_and_close(device: QueuedDevice, commands: Any) -> None:
        for *place, size, value in late:
            set_argument(*place, size, api.load().ffi.from_buffer(value))
        late.clear()
        close(device, commands)

    def put_off(kernel: Any, index: int, size: int, value: Any) -> int:
        if (kernel, index) not in seen:
            seen.add((kernel, index))
            return int(set_argument(kernel, index, size, value))
        late.append((kernel, index, size, bytes(api.load().ffi.buffer(value, size))))
        return 0

    patch.setattr(api.load(), "lib", Driver(zeKernelSetArgumentValue=put_off))
    patch.setattr(QueuedDevice, "_close_list", flush_and_close)


def open_lists(patch: pytest.MonkeyPatch) -> None:
    """Lists are executed before they are closed."""
    patch.setattr(QueuedDevice, "_close_list", lambda device, commands: None)


def one_event(patch: pytest.MonkeyPatch) -> None:
    """Every launch signals the same event."""
    create = Context.create

    def create_first(context: Context, kind: str, *arguments: Any) -> Any:
        first = ({**one, "index": 0} if kind == "Event" and isinstance(one, dict) else one for one in arguments)
        return create(context, kind, *first)

    patch.setattr(Context, "create", create_first)


def one_fence(patch: pytest.MonkeyPatch) -> None:
    """A fence is passed a second time."""
    fences: list[Any] = []
    execute = QueuedDevice._execute

    def execute_again(device: QueuedDevice, commands: Any, fence: Any) -> None:
        fences.append(fence)
        execute(device, commands, fences[0])

    patch.setattr(QueuedDevice, "_execute", execute_again)


def as_it_comes(patch: pytest.MonkeyPatch) -> None:
    """New memory is not zeroed; the driver poisons it."""
    patch.setattr(api.load(), "lib", Driver(zeCommandListAppendMemoryFill=lambda *arguments: 0))


def from_the_source(patch: pytest.MonkeyPatch) -> None:
    """An upload copies from the caller's memory, which need not outlive the call."""

    def upload(device: LevelZeroDevice, buffer: LevelZeroBuffer, offset: int, source: memoryview) -> None:
        address = np.frombuffer(source, np.uint8).ctypes.data
        device._append(device._commands(), "MemoryCopy", buffer.address + offset, address, source.nbytes)

    patch.setattr(LevelZeroDevice, "_upload", upload)


def lists_used_again(patch: pytest.MonkeyPatch) -> None:
    """A list is emptied for other commands while it is on its way."""

    def submit(device: QueuedDevice, commands: Any, spare: Any = None) -> None:
        device._execute(commands, device._new_fence())
        device._open_list(commands, again=False)

    patch.setattr(QueuedDevice, "_submit", submit)


def rule(name: str, *arguments: Any) -> Rule:
    """A rule of the kit."""
    return lambda bench: getattr(Kit(), name)(bench, *arguments)


def uploads_of_three_slots(bench: Bench) -> None:
    """More than the ring holds."""
    data = np.random.default_rng(0).integers(0, 256, 3 * SLOT, dtype=np.uint8)
    view = whole(bench.alloc(data.nbytes))
    bench.device.upload(view, data.data)
    assert (bench.read(view) == data).all()


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (no_barriers, rule("test_launches_see_the_results_of_earlier_ones")),
        (no_barriers, rule("test_copy", 64, 0, 0)),
        (late_arguments, rule("test_each_launch_has_its_own_kernel_and_parameters")),
        (open_lists, rule("test_every_replay_runs_again")),
        (one_event, rule("test_timings")),
        (one_fence, uploads_of_three_slots),
        (as_it_comes, rule("test_a_new_buffer_is_zero")),
        (from_the_source, rule("test_upload_is_done_with_its_source_on_return")),
        (lists_used_again, rule("test_replays_and_direct_launches_keep_their_order")),
    ],
    ids=lambda value: value.__name__ if value.__name__ != "<lambda>" else "",
)
def test_the_kit_finds_a_fault(
    bench: Bench, fault: Callable[[pytest.MonkeyPatch], None], check: Callable[[Bench], None]
) -> None:
    check(bench)
    bench.tidy()
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        with pytest.raises((AssertionError, GpuError)):
            check(bench)
    bench._buffers.clear()  # of a device that may be lost


def test_what_is_freed_too_early_is_seen(device: LevelZeroDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that does not wait before it frees fails with the next command that is carried out."""
    buffer = device.alloc(64)
    device.synchronize()
    device.upload(whole(buffer), memoryview(bytes(64)))
    with monkeypatch.context() as patch:
        patch.setattr(device, "_wait", lambda: None)
        device.free(buffer)
    with pytest.raises(DeviceLostError):
        device.synchronize()


def test_arguments_are_those_of_the_append(device: LevelZeroDevice) -> None:
    """Two launches of one kernel in one list."""
    spec = CATALOGUE["embed_rows"]
    params = {"rows": 1, "hidden": 4, "first": 0, "count": 2}
    table, step, x, z = (device.alloc(nbytes) for nbytes in (32, 32, 16, 16))
    device.upload(whole(table), memoryview(np.arange(8, dtype=np.float32)).cast("B"))
    device.upload(whole(step), memoryview(np.array([0, 0, 0, 0, 1, 0, 0, 0], np.int32)).cast("B"))
    launcher = Launcher(device)
    launches = [
        launcher.prepare(spec, params, [whole(table), View(step, 16 * at, 16), whole(out)], {"DTYPE": 0})
        for at, out in enumerate((x, z))
    ]
    launcher.run(launches)
    for at, out in enumerate((x, z)):
        found = np.empty(4, np.float32)
        device.download(whole(out), memoryview(found).cast("B"))
        np.testing.assert_array_equal(found, np.arange(4 * at, 4 * at + 4))

"""Backends whose modules are imported at their first use."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from bitnet_hal.driver.enumerate import by_index
from bitnet_hal.driver.lazy import LazyBackend
from bitnet_hal.errors import DeviceNotFoundError
from bitnet_hal.reference.plugin import NumpyBackend

MODULE = """
from bitnet_hal.driver.enumerate import EnumeratedDevice
from bitnet_hal.reference.plugin import NumpyBackend

def infos():
    return NumpyBackend().devices()

def Device(info):
    return NumpyBackend().open(info.index)

def usable():
    return [EnumeratedDevice("a handle", info) for info in infos()]

def Opened(found):
    assert found.handle == "a handle"
    return Device(found.info)
"""


@pytest.mark.parametrize(
    "backend",
    [
        LazyBackend("late", (2, 0), "late_module:infos", "late_module:Device"),
        LazyBackend("late", (2, 0), "late_module:usable", "late_module:Opened"),
    ],
    ids=["descriptions", "handles"],
)
def test_modules_are_imported_at_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: LazyBackend
) -> None:
    monkeypatch.delitem(sys.modules, "late_module", raising=False)
    (tmp_path / "late_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    assert "late_module" not in sys.modules
    infos = backend.devices()
    assert [info.index for info in infos] == [0]
    device = backend.open(0)
    assert device.info == infos[0]
    device.close()
    with pytest.raises(DeviceNotFoundError, match="no device late:7"):
        backend.open(7)


def test_a_device_that_is_not_there_is_answered_with_those_that_are() -> None:
    infos = NumpyBackend().devices()
    assert by_index(infos, 0, "reference") == infos[0]
    with pytest.raises(DeviceNotFoundError, match="no device reference:7") as caught:
        by_index(infos, 7, "reference")
    assert infos[0].name in caught.value.hint


def test_the_driver_begins_while_modules_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = Event()

    class Library:
        def __init__(self, name: str) -> None:
            if name != "libdriver.so":
                raise OSError(name)

        def begin(self, flags: int) -> None:
            assert flags == 0
            began.set()

    monkeypatch.setattr(ctypes, "CDLL", Library)
    (tmp_path / "slow_module.py").write_text(MODULE + "import began\nassert began.event.wait(9)\n")
    monkeypatch.setitem(sys.modules, "began", SimpleNamespace(event=began))
    monkeypatch.syspath_prepend(tmp_path)
    for begins in (("libdriver.so", "begin"), ("libdriver.so", "nothing"), ("nowhere.so", "begin")):
        assert LazyBackend("late", (2, 0), "slow_module:infos", "slow_module:Device", begins).devices()

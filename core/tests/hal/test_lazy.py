"""Backends whose modules are imported at their first use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bitnet_core.errors import DeviceNotFoundError
from bitnet_core.hal.described import described
from bitnet_core.hal.lazy import LazyBackend
from bitnet_core.reference.plugin import NumpyBackend

MODULE = """
from bitnet_core.reference.plugin import NumpyBackend

def infos():
    return NumpyBackend().devices()

def Device(index):
    return NumpyBackend().open(index)
"""


def test_modules_are_imported_at_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    backend = LazyBackend("late", (2, 0), "late_module:infos", "late_module:Device")
    assert "late_module" not in sys.modules
    infos = backend.devices()
    assert [info.index for info in infos] == [0]
    device = backend.open(0)
    assert device.info == infos[0]
    device.close()


def test_a_device_that_is_not_there_is_answered_with_those_that_are() -> None:
    infos = NumpyBackend().devices()
    assert described(infos, 0, "reference") == infos[0]
    with pytest.raises(DeviceNotFoundError, match="no device reference:7") as caught:
        described(infos, 7, "reference")
    assert infos[0].name in caught.value.hint

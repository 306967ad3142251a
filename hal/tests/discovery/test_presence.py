"""The devices that drivers show now, and the watch for those that come and go."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

import pytest
from bitnet_hal.discovery import presence
from bitnet_hal.discovery.presence import Presence, Watch, hardware, present, watchable

LISTS = """
from pathlib import Path
def listed(self):
    return [DeviceInfo({name!r}, int(i), "card", DeviceType.GPU) for i in Path({path!r}).read_text().split()]
Backend.devices = listed
"""
HANGS = "import time\nBackend.devices = lambda self: time.sleep(60)"


def test_a_new_process_is_asked_each_time(install_plugin: Any, tmp_path: Path) -> None:
    cards = tmp_path / "cards"
    install_plugin("vulkan", LISTS.format(name="vulkan", path=str(cards)))
    for shown in ("0", "0 1", "", "1"):
        cards.write_text(shown)
        found = present("vulkan")
        assert ([str(info.index) for info in found.devices], found.reason) == (shown.split(), "")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import os\nBackend.devices = lambda self: os._exit(3)", "its driver ends the process"),
        (HANGS, "does not answer within"),
        ("Backend.devices = lambda self: 1 / 0", ""),
        ("Backend.devices = lambda self: [DeviceInfo('other', 0, 'x', DeviceType.GPU)]", ""),
    ],
)
def test_drivers_that_fail(install_plugin: Any, body: str, reason: str) -> None:
    install_plugin("rocm", body)
    found = present("rocm", seconds=2.0)
    assert found.devices == ()
    assert found.reason.startswith(reason) or reason in found.reason
    assert bool(found.reason) == bool(reason)


def test_what_may_come_and_go(install_plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin("vulkan")
    install_plugin("stranger")
    assert sorted(watchable()) == ["stranger", "vulkan"]
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda")
    assert watchable() == []


def test_a_watch_tells_changes_and_a_driver_that_hangs_delays_nobody(
    install_plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "LOOK_SECONDS", 0.05)
    cards = tmp_path / "cards"
    cards.write_text("0")
    install_plugin("cuda", HANGS)
    install_plugin("vulkan", LISTS.format(name="vulkan", path=str(cards)))
    found: queue.Queue[Presence] = queue.Queue()
    watch = Watch(["cuda", "vulkan"], found.put, seconds=0.05)
    watch.start()
    try:
        for shown in ("0", "0 1", ""):
            cards.write_text(shown)
            answer = found.get(timeout=15)
            assert answer.backend == "vulkan"
            assert [str(info.index) for info in answer.devices] == shown.split()
    finally:
        watch.stop()
    time.sleep(0.2)
    assert found.empty()


def test_the_hardware_of_this_machine_stays_the_same() -> None:
    assert hardware() == hardware()

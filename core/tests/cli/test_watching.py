"""`bitnet devices --watch`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bitnet_core.cli.watching import _line, changes
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.discovery.presence import Presence

LISTS = """
from pathlib import Path
def listed(self):
    return [DeviceInfo("vulkan", int(i), "card", DeviceType.GPU) for i in Path({path!r}).read_text().split()]
Backend.devices = listed
"""


def card(index: int, place: str) -> DeviceInfo:
    return DeviceInfo("cuda", index, "H100", DeviceType.GPU, physical_id=place, total_memory=80 << 30)


def test_changes_are_by_card_and_not_by_index() -> None:
    both = Presence("cuda", (card(0, "a"), card(1, "b")))
    second = Presence("cuda", (card(0, "b"),))
    (event,) = changes(both, second)
    assert (event["event"], event["device"]) == ("departed", "cuda:0")
    (event,) = changes(second, both)
    assert _line(event).split()[1:] == [
        "arrived",
        "cuda:0",
        "H100",
        "(gpu,",
        "80.0",
        "GiB,",
        "driver",
        "not",
        "reported)",
    ]
    silent = Presence("cuda", reason="its driver does not answer within 20 s")
    assert [event["event"] for event in changes(both, silent)] == ["silent", "departed", "departed"]
    assert list(changes(silent, silent)) == []
    assert [event["event"] for event in changes(silent, both)] == ["answers", "arrived", "arrived"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot interrupt a child process")
def test_arrivals_and_departures_are_printed(install_plugin: Any, tmp_path: Path) -> None:
    cards = tmp_path / "cards"
    cards.write_text("0")
    site = install_plugin("vulkan", LISTS.format(path=str(cards)))
    code = f"import sys; sys.path.insert(0, {str(site)!r})\nfrom bitnet_core.cli import watching\n"
    code += "watching.WATCH_SECONDS = 0.05\nfrom bitnet_core.cli.app import main; main()"
    command = [sys.executable, "-c", code, "devices", "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            while "watching" not in process.stderr.readline():
                pass
            cards.write_text("0 1")
            lines = iter(process.stdout.readline, "")
            arrived = next(line for line in lines if "arrived" in line and "vulkan:1" in line)
            cards.write_text("1")
            departed = next(line for line in lines if "departed" in line and "vulkan:0" in line)
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    assert json.loads(arrived)["name"] == "card"
    assert json.loads(departed)["device"] == "vulkan:0"

"""Drivers that hang or crash while listing their devices."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs
import psutil
import pytest
from bitnet_hal.discovery import child, driver_cache
from bitnet_hal.discovery import registry as registry_module
from bitnet_hal.discovery.quarantine import Stage
from bitnet_hal.discovery.registry import registry
from bitnet_hal.discovery.selection import devices, open_device
from bitnet_hal.errors import BackendUnavailableError

HANGS = "import time\nBackend.devices = lambda self: time.sleep(60)"
CRASHES = "import os, signal\nBackend.devices = lambda self: os.kill(os.getpid(), signal.SIGSEGV)"
EXITS = "import os\nBackend.devices = lambda self: os._exit(3)"
ORPHAN = """
import os, threading, time
from pathlib import Path
from bitnet_hal.discovery.child import unresponsive_drivers
threading.Thread(target=unresponsive_drivers, args=({"vulkan": "1"},), daemon=True).start()
while not Path("process").exists() or not Path("process").read_text():
    time.sleep(0.01)
os._exit(0)
"""
COUNTS = """
from pathlib import Path
def listed(self):
    with open({path!r}, "a") as file:
        file.write("x")
    return [DeviceInfo("vulkan", 0, "card", DeviceType.GPU)]
Backend.devices = listed
"""


@pytest.fixture(autouse=True)
def really_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry_module, "unresponsive_drivers", child.unresponsive_drivers)
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _: tmp_path / "cache")
    monkeypatch.setattr(child, "WARNED_AFTER", 2.0)
    monkeypatch.setattr(child, "IGNORED_AFTER", 6.0)


def test_a_driver_that_hangs_or_crashes_hides_nobody(
    install_plugin: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install_plugin("cuda", HANGS)
    install_plugin("rocm", CRASHES)
    install_plugin("opencl", EXITS)
    install_plugin("vulkan", COUNTS.format(path=str(tmp_path / "calls")))
    started = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert [info.backend for info in devices()] == ["numpy", "vulkan"]
    assert time.monotonic() - started < 30
    assert "the driver of cuda does not answer after 2 s" in caplog.text
    reasons = {"cuda": "does not answer within 6 s", "rocm": "SIGSEGV", "opencl": "code 0x3"}
    assert {entry.name: entry.stage for entry in registry().quarantined} == dict.fromkeys(reasons, Stage.DRIVER)
    for name, reason in reasons.items():
        with pytest.raises(BackendUnavailableError, match=reason):
            open_device(name)


def test_what_is_known_is_not_asked_again(install_plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    install_plugin("vulkan", COUNTS.format(path=str(calls)))
    for expected in (2, 3):  # a process of its own and this one, then this one alone
        registry.cache_clear()
        assert len(devices()) == 2
        assert len(calls.read_text()) == expected
    monkeypatch.setenv("VK_DRIVER_FILES", "/elsewhere")
    registry.cache_clear()
    devices()
    assert len(calls.read_text()) == 5
    monkeypatch.setattr(driver_cache, "ANSWERED_SECONDS", 0)
    registry.cache_clear()
    devices()
    assert len(calls.read_text()) == 7


HUGE_TIME = b'{"a": {"reason": "", "time": 1%s}}' % (b"0" * 400)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"a": 1}', b"[" * 100_000, HUGE_TIME])
def test_a_damaged_cache_is_an_empty_one(install_plugin: Any, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "drivers.json").write_bytes(content)
    install_plugin("vulkan")
    assert len(devices()) == 2


def test_what_is_known_ends_with_the_next_start_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = []
    for boot in ("one", "one", "two"):
        monkeypatch.setattr(driver_cache, "BOOT_ID", tmp_path / boot)
        driver_cache.BOOT_ID.write_text(boot)
        keys.append(driver_cache.key("vulkan", "1.0"))
    assert keys[0] == keys[1] != keys[2]
    monkeypatch.setattr(driver_cache, "BOOT_ID", tmp_path / "on another system")
    assert driver_cache.key("vulkan", "1.0") == driver_cache.key("vulkan", "1.0") not in keys


@pytest.mark.skipif(os.name != "posix", reason="numbers of processes are asked for as POSIX has it")
def test_a_process_that_asks_ends_with_the_program(install_plugin: Any, tmp_path: Path) -> None:
    hangs = "def hang(self):\n    Path('process').write_text(str(os.getpid()))\n    time.sleep(60)\n"
    site = install_plugin(
        "vulkan", f"import os, time\nfrom pathlib import Path\n{hangs}Backend.devices = hang", entry="vulkan"
    )
    environment = {**os.environ, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", ORPHAN], cwd=tmp_path, env=environment, timeout=60, check=True)
    assert ended(int((tmp_path / "process").read_text()))


FORKS = """
import os, signal, time
from pathlib import Path
from bitnet_hal.discovery.child import Fork

def hang():
    Path("process").write_text(str(os.getpid()))
    time.sleep(60)

Fork().begin(hang)
while not Path("process").exists() or not Path("process").read_text():
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux alone")
def test_a_fork_that_asks_ends_with_the_program_that_is_killed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKS], cwd=tmp_path, timeout=60, check=False)
    assert ended(int((tmp_path / "process").read_text()))


def ended(process: int) -> bool:
    """Return whether a process ends within 20 seconds; it is killed otherwise."""
    end = time.monotonic() + 20
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(process).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > end:
                os.kill(process, signal.SIGKILL)
                return False
            time.sleep(0.05)
    return True

"""`bitnet devices` asks each backend in a fork."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_hal.device import DeviceInfo, DeviceType, TransferMode
from bitnet_hal.discovery import listing
from bitnet_hal.discovery.child import Fork
from bitnet_hal.discovery.driver_cache import remembered
from bitnet_hal.discovery.plain import from_plain, to_plain

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere backends are asked in the same process")

DIES = "import os, signal\nBackend.devices = lambda self: {how}"
LISTED = "Backend.devices = lambda self: [DeviceInfo({name!r}, 3, 'card', DeviceType.GPU, extra={{'process': {what}}})]"
SHORT = "from bitnet_hal.discovery import child\nchild.WARNED_AFTER, child.IGNORED_AFTER = 0.5, 2.0\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache of the drivers' answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def program(site: Path, *arguments: str, before: str = "") -> list[str]:
    text = f"import sys; sys.path.insert(0, {str(site)!r})\n{before}\nfrom bitnet_core.cli.app import main; main()"
    return [sys.executable, "-c", text, *arguments]


def listed(site: Path, before: str = "") -> tuple[list[dict[str, Any]], str]:
    """Devices of the test's plugins and of numpy, and stderr."""
    done = subprocess.run(
        program(site, "devices", "--json", before=before), capture_output=True, text=True, timeout=60, check=True
    )
    mine = [one for one in json.loads(done.stdout) if one["name"] in ("card",) or one["backend"] == "numpy"]
    return mine, done.stderr


@pytest.mark.parametrize(
    ("name", "how", "end"),
    [
        ("rocm", "os.abort()", "SIGABRT"),
        ("stranger", "os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("stranger", "os._exit(3)", "code 0x3"),
        ("rocm", "os.closerange(3, 64) or os._exit(0)", "code 0x0"),
    ],
)
def test_a_driver_that_crashes_takes_only_its_own_line(install_plugin: Any, name: str, how: str, end: str) -> None:
    install_plugin(name, DIES.format(how=how))
    site = install_plugin("metal", LISTED.format(name="metal", what=1))
    for _ in range(2):  # asked, then remembered or asked again
        devices, said = listed(site)
        assert [one["device"] for one in devices] == ["metal:3", "numpy:0"]
        assert f"{name} is ignored: its driver ends the process that asks for its devices ({end})" in said
    known = remembered({"rocm": "1.2.3", "metal": "1.2.3"})
    assert known["metal"] == ""
    assert name != "rocm" or end in known["rocm"]


@pytest.mark.parametrize("hanging", ["time.sleep(60)", "ctypes.PyDLL(None).sleep(60)"])
def test_a_driver_that_hangs_is_named_and_then_left_out(install_plugin: Any, hanging: str) -> None:
    """Also one that does not let other threads work."""
    install_plugin("rocm", f"import ctypes, time\nBackend.devices = lambda self: {hanging}")
    site = install_plugin("metal", LISTED.format(name="metal", what=1))
    began = time.monotonic()
    devices, said = listed(site, SHORT)
    assert [one["device"] for one in devices] == ["metal:3", "numpy:0"]
    assert "the driver of rocm does not answer after 0.5 s" in said
    assert "rocm is ignored: its driver does not answer within 2 s" in said
    assert time.monotonic() - began < 30


def test_each_backend_has_a_process_and_may_do_there_what_it_likes(install_plugin: Any) -> None:
    noise = "import os, ctypes\nprint('python')\nos.write(1, b'system\\n')\nctypes.CDLL(None).printf(b'libc\\n')\n"
    noisy = "def noisy():\n    import ctypes, os\n    print('more', end='')\n    ctypes.CDLL(None).printf(b'libc 2')\n"
    for name in ("cuda", "rocm"):
        lists = LISTED.format(name=name, what="str(noisy() or os.getpid())")
        site = install_plugin(name, noise + noisy + lists)
    devices, said = listed(site)
    assert [one["device"] for one in devices] == ["cuda:3", "rocm:3", "numpy:0"]
    assert len({one["extra"]["process"] for one in devices[:2]}) == 2
    assert said.count("more") == said.count("libc 2") == 2


QUARANTINED = """
import atexit
from bitnet_hal.discovery.registry import registry
def show():
    for one in registry().quarantined:
        print(one.name, one.stage.name, one.reason, one.fix, sep=" | ", file=sys.stderr)
atexit.register(show)
"""


def test_what_fails_there_has_its_reason_and_fix_here(install_plugin: Any) -> None:
    failing = "def fail(self):\n    raise {error}\nBackend.devices = fail"
    install_plugin("cuda", failing.format(error="BackendUnavailableError('no card', hint='Buy one')"))
    install_plugin("rocm", failing.format(error="RuntimeError('boom')"))
    infos = "[DeviceInfo('metal', i, 'card', DeviceType.GPU, max_grid=m) for i, m in enumerate([(1, 2, 3), ('a',)])]"
    site = install_plugin("metal", f"Backend.devices = lambda self: {infos}")
    devices, said = listed(site, QUARANTINED)
    assert [one["device"] for one in devices] == ["metal:0", "numpy:0"]
    assert "cuda | DRIVER | no card | Buy one" in said
    assert "rocm | DEVICES | RuntimeError: boom | This is a fault of bitnet-plugin_rocm" in said
    assert "metal | DEVICES | a device of 'metal': its largest grid is not three integers | Report it" in said


def test_a_request_to_end_ends_all_processes(install_plugin: Any) -> None:
    waits = (
        "import os, sys, time\ndef wait(self):\n    sys.stderr.write(f'process {os.getpid()}\\n')\n    time.sleep(60)\n"
    )
    site = install_plugin("rocm", waits + "Backend.devices = wait")
    with subprocess.Popen(program(site, "devices"), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        child = next(int(line.split()[1]) for line in process.stderr if line.startswith("process "))
        process.terminate()
        assert process.wait(15) == 128 + signal.SIGTERM
        assert "Traceback" not in process.stderr.read()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_process_is_ended_though_it_was_interrupted_as_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Fork.begin
    begun: list[int] = []

    def interrupted(fork: Fork, ask: Any) -> None:
        begin(fork, lambda: time.sleep(60))
        begun.append(fork._pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(listing, "_forks_are_safe", lambda: True)
    monkeypatch.setattr(listing, "remembered", lambda versions: {})
    monkeypatch.setattr(Fork, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt), listing.probe_in_forks():
        pass
    with pytest.raises(ProcessLookupError):
        os.kill(begun[0], 0)


def test_a_description_comes_back_as_it_was() -> None:
    info = DeviceInfo(
        *("cuda", 2, "caf\u00e9 \udcff", DeviceType.INTEGRATED, "V", "D", 1 << 40, 2, 3, (4, 5, 6), 64),
        *(TransferMode.UNIFIED, "0000:03:00.0", frozenset({"b", "a"}), frozenset({"timings"}), frozenset({"c"})),
        batch_invariant_rows={"rms_norm": 8},
        extra={"a": 1, "b": 0.1, "c": True, "d": "e"},
    )
    assert all(getattr(info, field.name) for field in fields(info) if field.name != "fake")
    assert from_plain(json.loads(json.dumps(to_plain(info)))) == info


def test_lists_need_no_numpy() -> None:
    code = "from bitnet_hal.reference.describe import numpy_info; import bitnet_hal.plugin, sys\n"
    code += "print(numpy_info().driver, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["numpy", np.__version__, "False"]

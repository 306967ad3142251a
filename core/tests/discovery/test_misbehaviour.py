"""A plugin may do anything wrong: it is left out with stage, reason and fix, and everything else goes on."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bitnet_core import load
from bitnet_core.doctor.findings import check_device
from bitnet_hal import isolation as apart
from bitnet_hal.device import DeviceType, whole
from bitnet_hal.discovery import plugin_device, selection
from bitnet_hal.discovery.quarantine import Stage
from bitnet_hal.discovery.registry import registry
from bitnet_hal.discovery.selection import devices, open_device
from bitnet_hal.errors import (
    BackendIncompatibleError,
    DeviceNotFoundError,
    GpuError,
    GpuTimeoutError,
    OutOfMemoryError,
    UsageError,
)
from bitnet_hal.guard import guard
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.version import API_VERSION

EVERY_WAY = [
    "raise SystemExit('bye')",
    "raise RuntimeError('boom')",
    "raise type('Odd', (BaseException,), {})('odd')",
    "raise GeneratorExit",
    "raise MemoryError",
    "return None",
    "return 7",
]


def backend(method: str, body: str) -> str:
    """Source that replaces a method of the standard plugin's backend."""
    return f"def _{method}(self, *index):\n    {body}\nBackend.{method} = _{method}\n"


@pytest.mark.parametrize("body", EVERY_WAY)
def test_open_may_fail_in_any_way(install_plugin: Any, body: str) -> None:
    install_plugin("cuda", backend("open", body))
    device, summary = open_device("auto")
    assert device.info.backend == "numpy"
    assert summary.skipped[0][0].request == "cuda:0"
    with pytest.raises(
        BackendIncompatibleError, match=r"cuda:0 fails, a fault of bitnet-plugin_cuda_\w+ 1\.2\.3: .*\(during open\)"
    ):
        open_device("cuda")
    check = check_device(summary.skipped[0][0])
    assert not check.passed
    assert "fault of bitnet-plugin_cuda" in check.reason


def test_a_variable_that_makes_no_sense_is_no_fault_of_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_GPU_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="BITNET_GPU_TIMEOUT is 'soon'"):
        open_device("numpy")


NUMPY = """
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice
from dataclasses import replace
INFO = replace(numpy_info(), backend="cuda", name="card", type=DeviceType.GPU)
class Card(NumpyDevice):
    def __init__(self):
        super().__init__(INFO)
Backend.devices = lambda self: [INFO]
Backend.open = lambda self, index: Card()
"""


def method(name: str, body: str) -> str:
    """Source of a plugin whose devices have one method that fails."""
    return f"{NUMPY}\ndef _{name}(self, *arguments, **named):\n    {body}\nCard.{name} = _{name}\n"


@cache
def numpys_text() -> str:
    with load(None, "numpy") as model:
        return model.generate("Once upon a time", max_tokens=12, temperature=0.0).text


FAILING = ("alloc", "upload", "tuning", "compile", "launch", "download", "record", "_record", "free_memory")


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("body", ["raise SystemExit('bye')", "raise ValueError('odd')", "return None"])
def test_methods_of_a_device_may_fail_in_any_way(install_plugin: Any, name: str, body: str, caplog: Any) -> None:
    """The text goes on, on the next device, as it would have been."""
    if body == "return None" and name in ("upload", "download", "launch", "_record"):
        body = "raise RuntimeError('boom')"  # which they may return
    install_plugin("cuda", method(name, body))
    with load(None, "auto") as model:
        text = model.generate("Once upon a time", max_tokens=12, temperature=0.0).text
        assert model.device.info.backend == "numpy"
    assert text == numpys_text()
    assert "cuda:0 fails, a fault of bitnet-plugin_cuda" in caplog.text


@pytest.mark.parametrize("name", ["close", "free"])
def test_a_device_that_cannot_be_closed_says_so(install_plugin: Any, name: str) -> None:
    install_plugin("cuda", method(name, "raise SystemExit"))
    model = load(None, "cuda")
    with pytest.raises(BackendIncompatibleError, match=rf"SystemExit \(during {name}\)"):
        model.close()


DRIVER = """try:
        raise RuntimeError('driver said 42')
    except RuntimeError as error:
        raise OutOfMemoryError('no room') from error"""


@pytest.mark.parametrize("name", ["alloc", "record"])
def test_the_cause_of_an_error_is_the_drivers_own_exception(install_plugin: Any, name: str) -> None:
    install_plugin("cuda", f"from bitnet_hal.errors import OutOfMemoryError\n{method(name, DRIVER)}")
    device, _ = open_device("cuda")
    with pytest.raises(OutOfMemoryError, match="no room") as raised:
        getattr(device, name)(*[64] * (name == "alloc"))
    assert repr(raised.value.__cause__) == "RuntimeError('driver said 42')"
    device.close()


@pytest.mark.parametrize("block", ["__enter__", "__exit__"])
def test_the_cause_of_a_recordings_error_is_the_drivers_own_exception(block: str) -> None:
    class Recording:
        def __enter__(self) -> None:
            self.fail("__enter__")

        def __exit__(self, *raised: object) -> None:
            self.fail("__exit__")

        def fail(self, name: str) -> None:
            if name == block:
                raise OutOfMemoryError("no room") from RuntimeError("driver said 42")

    class Card:
        def record(self) -> Recording:
            return Recording()

    recording = guard(Card(), lambda operation, text: BackendIncompatibleError(text)).record()  # type: ignore[type-var, arg-type]  # no more than guard uses
    with pytest.raises(OutOfMemoryError, match="no room") as raised, recording:
        pass
    assert repr(raised.value.__cause__) == "RuntimeError('driver said 42')"


def test_an_unknown_exception_is_the_cause_of_the_plugins_fault(install_plugin: Any) -> None:
    install_plugin("cuda", method("alloc", "raise RuntimeError('driver said 42')"))
    device, _ = open_device("cuda")
    with pytest.raises(BackendIncompatibleError) as raised:
        device.alloc(64)
    assert repr(raised.value.__cause__) == "RuntimeError('driver said 42')"
    device.close()


def test_what_a_block_raises_goes_through_a_recording(install_plugin: Any) -> None:
    install_plugin("cuda", NUMPY)
    device, _ = open_device("cuda")
    with pytest.raises(ZeroDivisionError), device.record():
        raise ZeroDivisionError
    device.close()


@pytest.mark.parametrize(
    "body",
    [
        "raise type('Odd', (GpuError,), {'__str__': lambda self: 1 / 0})('x')",
        "raise GpuError(None)",
        "raise type('Odd', (GpuError,), {'exit_code': 'x'})('x')",
    ],
)
def test_an_error_of_ours_that_cannot_be_shown_is_the_plugins_fault(install_plugin: Any, body: str) -> None:
    install_plugin("cuda", backend("open", body))
    with pytest.raises(BackendIncompatibleError, match="a fault of bitnet-plugin_cuda"):
        open_device("cuda")


@pytest.mark.parametrize("body", EVERY_WAY)
def test_listing_devices_may_fail_in_any_way(install_plugin: Any, body: str) -> None:
    install_plugin("cuda", backend("devices", body))
    assert [info.backend for info in devices()] == ["numpy"]
    failure = registry().failure("cuda")
    assert failure is not None
    assert failure.stage is Stage.DEVICES
    assert "fault of bitnet-plugin_cuda" in failure.fix


@pytest.mark.parametrize("body", EVERY_WAY[:5])
def test_importing_and_building_may_fail_in_any_way(install_plugin: Any, body: str) -> None:
    install_plugin("bad", source=body.replace("return", "raise"))
    install_plugin("worse", f"@hookimpl\ndef bitnet_backend():\n    {body}\n")
    stages = {entry.name: entry.stage for entry in registry().quarantined}
    assert stages == {"bad": Stage.IMPORT, "worse": Stage.BACKEND}
    assert all(entry.reason and entry.fix for entry in registry().quarantined)


@pytest.mark.parametrize("where", ["import", "devices"])
def test_an_interrupt_of_the_user_is_not_swallowed(install_plugin: Any, where: str) -> None:
    waiting = "_thread.interrupt_main(); time.sleep(3)"
    install_plugin("cuda", "import _thread, time\n" + (waiting if where == "import" else backend("devices", waiting)))
    with pytest.raises(KeyboardInterrupt):
        devices()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("name=''", "no name"),
        ("name='  '", "no name"),
        ("name=7", "name is int"),
        ("total_memory='8 GB'", "total_memory is str"),
        ("max_binding=-1", "negative"),
        ("alignment=3", "not a power of two"),
        ("type='gpu'", "type is str"),
        ("kernels=frozenset({1})", "not a string"),
        ("kernels=['decoder']", "kernels is list"),
        ("extra={'a': []}", "not a string, number or bool"),
        ("extra=None", "extra is NoneType"),
        ("index=True", "index is bool"),
    ],
)
def test_descriptions_of_wrong_types_are_refused(install_plugin: Any, change: str, reason: str) -> None:
    body = f"from dataclasses import replace; return [replace(DeviceInfo('cuda', 0, 'x', DeviceType.GPU), {change})]"
    install_plugin("cuda", backend("devices", body))
    assert [info.backend for info in devices()] == ["numpy"]
    assert reason in registry().quarantined[0].reason
    assert registry().quarantined[0].stage is Stage.DEVICES


def test_a_description_with_code_of_its_own_is_refused(install_plugin: Any) -> None:
    odd = "type('Odd', (DeviceInfo,), {'request': property(lambda self: exit())})"
    install_plugin("cuda", backend("devices", f"return [{odd}('cuda', 0, 'x', DeviceType.GPU)]"))
    assert [info.backend for info in devices()] == ["numpy"]
    assert "described by Odd" in registry().quarantined[0].reason


@pytest.mark.parametrize("name", ["llvmpipe (LLVM 15.0.6)", "SwiftShader Device", "pocl-haswell"])
def test_a_cpu_that_calls_itself_a_gpu_is_named(install_plugin: Any, name: str, caplog: Any) -> None:
    install_plugin("vulkan", backend("devices", f"return [DeviceInfo('vulkan', 0, {name!r}, DeviceType.GPU)]"))
    assert [info.type for info in devices() if info.backend == "vulkan"] == [DeviceType.SOFTWARE]
    assert "counts as software" in caplog.text
    with pytest.raises(DeviceNotFoundError, match="no GPU"):
        open_device("gpu")


def test_a_plugin_that_hangs_is_named_and_then_left_out(
    install_plugin: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(apart, "WARNED_AFTER", 0.1)
    monkeypatch.setattr(apart, "IGNORED_AFTER", 0.3)
    install_plugin("cuda", "import time\n" + backend("devices", "time.sleep(3); return []"))
    started = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert [info.backend for info in devices()] == ["numpy"]
    assert time.monotonic() - started < 2
    assert "cuda is still looking for its devices after 0.1 s" in caplog.text
    with pytest.raises(GpuTimeoutError, match="longer than"):
        open_device("cuda")


@pytest.mark.parametrize(
    ("source", "stage", "doing"),
    [
        ("time.sleep(3)", Stage.IMPORT, "being imported"),
        ("@hookimpl\ndef bitnet_backend():\n    time.sleep(3)\n", Stage.BACKEND, "making its backend"),
    ],
)
def test_a_plugin_that_hangs_at_its_start_is_left_out(
    install_plugin: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any, source: str, stage: Stage, doing: str
) -> None:
    monkeypatch.setattr(apart, "WARNED_AFTER", 0.1)
    monkeypatch.setattr(apart, "IGNORED_AFTER", 0.3)
    install_plugin("cuda", "import time\n" + source)
    assert [info.backend for info in devices()] == ["numpy"]
    assert registry().quarantined[0].stage is stage
    assert f"cuda is still {doing} after 0.1 s" in caplog.text


def test_a_plugin_that_hangs_while_it_chooses_has_no_say(install_plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "IGNORED_AFTER", 0.1)
    monkeypatch.setattr(apart, "WARNED_AFTER", 0.1)
    install_plugin("cuda", NUMPY + "import time\n@hookimpl\ndef bitnet_select_device(devices):\n    time.sleep(3)\n")
    device, _ = open_device("auto")
    assert device.info.backend == "cuda"
    device.close()


def test_a_plugin_of_another_hal_is_told_both_versions(install_plugin: Any) -> None:
    for name, api in (("old", (API_VERSION[0] - 1, 0)), ("new", (API_VERSION[0] + 1, 0))):
        install_plugin(name, api=api)
        failure = registry().failure(name)
        assert failure is not None
        assert failure.stage is Stage.API
        assert f"{api[0]}.0 of the HAL, bitnet-hal has {API_VERSION[0]}.{API_VERSION[1]}" in failure.reason
        assert failure.fix.startswith("Upgrade ")


@pytest.mark.parametrize(
    "body",
    [
        "raise SystemExit",
        "register('x', 7)",
        "register(None, print)",
        "register('a b', lambda: None)",
        "def odd(x: complex) -> None: ...\n    register('odd', odd)",
        "print('noise'); raise type('Odd', (BaseException,), {})",
    ],
)
def test_commands_of_a_plugin_may_be_wrong(install_plugin: Any, body: str, tmp_path: Path) -> None:
    site = install_plugin("cuda", f"@hookimpl\ndef bitnet_commands(register):\n    {body}\n")
    assert json.loads(bitnet(site, "devices", "--json"))


def test_what_plugins_print_does_not_spoil_the_result(install_plugin: Any) -> None:
    noise = "import ctypes, os\nprint('python')\nos.write(1, b'system\\n')\nctypes.CDLL(None).printf(b'libc\\n')\n"
    site = install_plugin("cuda", noise + backend("devices", "print('more'); return []"))
    assert json.loads(bitnet(site, "devices", "--json"))


def bitnet(site: Path, *arguments: str) -> str:
    """stdout of the program in a process of its own, with the plugins of a folder."""
    program = f"import sys; sys.path.insert(0, {str(site)!r}); from bitnet_core.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("fault", [SystemExit, RuntimeError("driver said 42")])
@pytest.mark.parametrize("name", ["_upload", "_download", "_replay"])
def test_a_fault_below_a_method_of_every_step_names_the_plugin(name: str, fault: Any) -> None:
    class Card(NumpyDevice):
        pass

    def fails(*arguments: Any) -> None:
        raise fault

    device = Card()
    buffer = device.alloc(64)
    with device.record() as recording:
        pass
    setattr(Card, name, fails)
    guarded = guard(device, lambda operation, text: BackendIncompatibleError(f"{operation}: {text}"))
    data = memoryview(bytearray(64))
    calls = {
        "_upload": lambda: guarded.upload(whole(buffer), data),
        "_download": lambda: guarded.download(whole(buffer), data),
        "_replay": lambda: guarded.replay(recording),
    }
    with pytest.raises(BackendIncompatibleError, match=f"^{name[1:]}: ") as raised:
        calls[name]()
    assert repr(raised.value.__cause__) in ("SystemExit()", "RuntimeError('driver said 42')")


def test_a_device_that_hangs_while_it_opens_is_named_and_left_out(
    install_plugin: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(apart, "WARNED_AFTER", 0.1)
    monkeypatch.setattr(plugin_device, "OPEN_SECONDS", 0.3)
    many = backend("devices", "return [DeviceInfo('cuda', i, 'x', DeviceType.GPU) for i in range(50)]")
    install_plugin("cuda", "import time\n" + many + backend("open", "time.sleep(3)"))
    started = time.monotonic()
    device, summary = open_device("auto")
    assert device.info.backend == "numpy"
    assert time.monotonic() - started < 2
    assert [info.request for info, _ in summary.skipped] == ["cuda:0"]
    assert "cuda is still opening a device after 0.1 s" in caplog.text
    started = time.monotonic()
    with pytest.raises(GpuTimeoutError, match=r"it is still opening another device \(during open\)"):
        open_device("cuda:1")
    checks = [check_device(info) for info in devices({"cuda"})]
    assert len(checks) == 50
    assert not any(check.passed for check in checks)
    assert time.monotonic() - started < 5, "one of 50 devices was waited for again"
    registry()._opener._hanging["cuda"].wait()  # the call ends after all: the next one is tried again
    with pytest.raises(GpuTimeoutError, match=r"opening a device took longer than 0.3 s"):
        open_device("cuda:1")


def test_a_device_that_opens_too_late_is_closed() -> None:
    late: list[int] = []
    with pytest.raises(GpuTimeoutError):
        apart.bounded(lambda: time.sleep(0.3) or 7, "cuda", "opening", seconds=0.05, late=late.append)
    time.sleep(0.5)
    assert late == [7]


def test_endless_devices_are_not_all_tried(install_plugin: Any) -> None:
    endless = backend("devices", "return (DeviceInfo('cuda', i, 'x', DeviceType.GPU) for i in count())")
    install_plugin("cuda", "from itertools import count\n" + endless + backend("open", "raise GpuError('no')"))
    device, summary = open_device("auto")
    assert device.info.backend == "numpy"
    assert len(summary.skipped) == selection.MAX_FAILED


@pytest.mark.parametrize("method", ["devices", "open"])
def test_an_interrupt_of_a_plugin_does_not_end_the_program(install_plugin: Any, method: str) -> None:
    install_plugin("cuda", backend(method, "raise KeyboardInterrupt"))
    assert open_device("auto")[0].info.backend == "numpy"
    with pytest.raises(GpuError, match="it raises KeyboardInterrupt"):
        open_device("cuda")

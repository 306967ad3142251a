"""`bitnet doctor` and `bitnet devices`: every plugin and device is listed with its reason and fix, however broken."""

from __future__ import annotations

import json
from pathlib import Path

import bitnet_core
import pytest
from bitnet_core.doctor.findings import setting_findings
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.discovery.known import AMD, backends_here, install_hint

WRONG_SIGNATURE = """
import pluggy
@pluggy.HookimplMarker("bitnet")
def bitnet_backend(vendor):
    return None
"""
ABSENT_DRIVER = """
def absent(self):
    raise BackendUnavailableError("no libvendor.so.1", backend=self.name, hint="Install vendor-driver")
Backend.devices = absent
"""
COMPUTES = """
from dataclasses import replace
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice
Backend.open = lambda self, index: NumpyDevice(replace(numpy_info(), backend=self.name))
"""
WRONG_SUM = """
from dataclasses import replace
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice
class Faulty(NumpyDevice):
    def download(self, src, dst):
        super().download(src, dst)
        dst.cast("B")[0] ^= 255
Backend.open = lambda self, index: Faulty(replace(numpy_info(), backend=self.name))
"""
OPENS_NOT = """
def fail(self, index):
    raise GpuError("context refused", backend=self.name, code="VENDOR_EIO (-7)", hint="Reboot")
Backend.open = fail
"""
COMPILES_NOT = """
from dataclasses import replace
from bitnet_hal.errors import KernelCompileError
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice
class Faulty(NumpyDevice):
    def _compile(self, spec, constants, tuning):
        if spec.name in ("rms_norm", "top_k"):
            log = "kernel.c:1: note: here\\nkernel.c:3:7: error: no such thing\\n"
            raise KernelCompileError("bad source", kernel=spec.name, log=log, backend=self.info.backend)
        return super()._compile(spec, constants, tuning)
Backend.open = lambda self, index: Faulty(replace(numpy_info(), backend=self.name))
"""
CRASHES = "Backend.open = lambda self, index: 1 // 0"


@pytest.fixture
def broken_plugins(install_plugin) -> None:
    """Install every kind of broken plugin that a user may meet, beside one that works."""
    install_plugin("at-import", source="raise ImportError('libvendor.so.1 is missing')")
    install_plugin("signature", source=WRONG_SIGNATURE)
    install_plugin("newer", api=(2, 99))
    install_plugin("no-driver", ABSENT_DRIVER)
    install_plugin("good", COMPUTES)


@pytest.mark.usefixtures("broken_plugins")
def test_doctor_lists_every_broken_plugin_and_everything_else_works(bitnet) -> None:
    result = bitnet("doctor", "--json")
    document = json.loads(result.out)
    assert result.code == 1
    stages = {plugin["name"]: plugin["stage"] for plugin in document["plugins"]}
    assert stages == {
        "at-import": "import",
        "signature": "hook signature",
        "newer": "API version",
        "no-driver": "driver",
    }
    assert all(plugin["reason"] and plugin["fix"] and plugin["version"] == "1.2.3" for plugin in document["plugins"])
    assert {device["device"]: device["result"] for device in document["devices"]} == {
        "numpy:0": "PASS",
        "good:0": "PASS",
    }
    text = bitnet("doctor").out
    for part in ("libvendor.so.1 is missing", "vendor", "version 2.99", "Install vendor-driver", "PASS", "good:0"):
        assert part in text
    assert bitnet("devices").code == 0


@pytest.mark.usefixtures("broken_plugins")
@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("at-import", "libvendor.so.1 is missing"),
        ("signature", "vendor"),
        ("newer", "version 2.99"),
        ("no-driver", "Install vendor-driver"),
    ],
)
def test_a_broken_plugin_asked_for_by_name_is_code_11_with_its_reason(bitnet, device: str, reason: str) -> None:
    result = bitnet("run", "Once", "--device", device)
    assert result.code == 11
    assert reason in result.err
    assert result.out == ""


@pytest.mark.usefixtures("broken_plugins")
def test_text_comes_out_beside_broken_plugins(bitnet) -> None:
    result = bitnet("run", "Once", "-n", 2, "--device", "numpy")
    assert (result.code, "stories on numpy:0" in result.err) == (0, True)


def test_an_absent_driver_alone_is_no_failure(bitnet, install_plugin) -> None:
    install_plugin("no-driver", ABSENT_DRIVER)
    result = bitnet("doctor")
    assert result.code == 0
    assert "no libvendor.so.1" in result.out


@pytest.mark.parametrize(
    ("source", "reason", "fix"),
    [
        (WRONG_SUM, "wrong in 1 of 111 places", "report it"),
        (COMPILES_NOT, "kernels do not compile: rms_norm, top_k", "report it"),
        (OPENS_NOT, "VENDOR_EIO (-7)", "Reboot"),
        (CRASHES, "ZeroDivisionError", "report it to its authors"),
    ],
)
def test_a_device_that_fails(bitnet, install_plugin, source: str, reason: str, fix: str) -> None:
    install_plugin("vendor", source)
    result = bitnet("doctor", "--json")
    assert result.code == 1
    device = json.loads(result.out)["devices"][1]
    assert (device["device"], device["result"]) == ("vendor:0", "FAIL")
    assert reason in device["reason"]
    assert fix in device["fix"]


def test_the_compiler_s_log_is_kept_and_named(
    bitnet, install_plugin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("platformdirs.user_log_dir", lambda *_, **__: str(tmp_path / "logs"))
    install_plugin("vendor", COMPILES_NOT)
    (reason,) = [d["reason"] for d in json.loads(bitnet("doctor", "--json").out)["devices"] if d["result"] == "FAIL"]
    assert "kernel.c:3:7: error: no such thing" in reason
    path = tmp_path / "logs" / "compile-vendor-rms_norm.log"
    assert str(path) in reason
    assert path.read_text().startswith("kernel.c:1: note: here\nkernel.c:3:7: error")
    path.unlink()
    result = bitnet("run", "Once", "-n", 2, "--device", "vendor")
    assert result.code == 1
    assert "The compiler says: kernel.c:3:7: error: no such thing" in result.err
    assert f"The compiler's whole log: {path}" in result.err
    assert path.exists()


def test_what_a_compiler_says_of_every_kernel_is_shown_once(bitnet, install_plugin) -> None:
    install_plugin("vendor", COMPILES_NOT.replace('in ("rms_norm", "top_k")', '!= "argmax_advance"'))
    (reason,) = [d["reason"] for d in json.loads(bitnet("doctor", "--json").out)["devices"] if d["result"] == "FAIL"]
    first, *said = reason.splitlines()
    failed = first.partition(": ")[2].split(", ")
    assert len(failed) > 5
    assert said[0].startswith(f"{failed[0]}, and {len(failed) - 1} kernels more: ")
    assert [line.partition(":")[0] for line in said[1:]] == ["The compiler says", "The compiler's whole log"]


@pytest.mark.usefixtures("broken_plugins")
def test_preflight_tells_the_same_to_a_program() -> None:
    findings = {finding.code: finding.severity for finding in bitnet_core.preflight()}
    assert findings["plugin-quarantined"] == "warning"
    assert findings["driver-absent"] == "info"
    assert [info.request for info in bitnet_core.devices()] == ["numpy:0", "good:0"]
    assert bitnet_core.gpu_available()


def test_hardware_without_a_plugin_is_noticed(tmp_path: Path) -> None:
    for number, (kind, vendor) in enumerate([("0x030000", "0x10de"), ("0x020000", "0x1002"), ("0x120000", "0x1002")]):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        (folder / "class").write_text(kind + "\n")
        (folder / "vendor").write_text(vendor + "\n")
    (tmp_path / "0000:09:00.0").mkdir()
    cpu = DeviceInfo("numpy", 0, "host", DeviceType.CPU)
    messages = [finding.message for finding in setting_findings([cpu], tmp_path) if finding.code == "gpu-unused"]
    assert messages[0].endswith(
        "AMD graphics hardware that no installed backend uses: " + install_hint(*backends_here(AMD))
    )
    assert messages[1].endswith(
        "NVIDIA graphics hardware that no installed backend uses: pip install ./plugins/bitnet-cuda"
    )
    gpu = DeviceInfo("vulkan", 0, "card", DeviceType.GPU)
    assert not [finding for finding in setting_findings([gpu], tmp_path) if finding.code == "gpu-unused"]


def test_devices_as_json_and_as_a_table(bitnet, install_plugin) -> None:
    install_plugin("cuda", "Backend.devices = lambda self: [DeviceInfo('cuda', 0, 'card', DeviceType.GPU, vendor='V')]")
    listed = json.loads(bitnet("devices", "--json").out)
    assert [(entry["device"], entry["type"], entry["rank"]) for entry in listed] == [
        ("cuda:0", "gpu", 100),
        ("numpy:0", "cpu", 0),
    ]
    assert "vendor:" not in bitnet("devices").out
    assert "vendor: V" in bitnet("devices", "-v").out


def test_doctor_shows_the_code_path_of_a_cpu_backend(bitnet, install_plugin) -> None:
    source = COMPUTES + "infos = [DeviceInfo('good', 0, 'chip', DeviceType.CPU, extra={'active_kernel': 'avx2'})]\n"
    install_plugin("good", source + "Backend.devices = lambda self: infos")
    assert "chip, avx2" in bitnet("doctor").out


def test_fakes_are_marked(bitnet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda")
    assert "gpu (fake)" in bitnet("devices").out
    assert "BITNET_GPU_FAKE is set" in bitnet("doctor").out
    monkeypatch.setenv("BITNET_STRICT_NO_FAKE_GPU", "1")
    assert bitnet("devices").code == 8

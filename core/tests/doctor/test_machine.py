"""Findings of `bitnet doctor` about device files, packages, tools and a model's size."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from bitnet_core.doctor import vendor_tools
from bitnet_core.doctor.access import access_findings
from bitnet_core.doctor.fits import _fit
from bitnet_core.doctor.versions import unmet, version_findings
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_hal.device import DeviceType, TransferMode


def test_device_files_that_may_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dri").mkdir()
    for name in ("dri/renderD128", "dri/renderD129", "dri/card0", "kfd"):
        (tmp_path / name).touch()
    closed = {tmp_path / "dri/renderD129", tmp_path / "kfd"}
    monkeypatch.setattr(os, "access", lambda path, mode: path not in closed)
    found = access_findings(tmp_path)
    assert [(finding.severity, finding.message.split()[0]) for finding in found] == [
        ("warning", str(tmp_path / "dri/renderD129")),
        ("warning", str(tmp_path / "kfd")),
    ]
    assert "usermod -aG" in found[0].message
    assert access_findings(tmp_path / "none") == []


def test_versions_against_needs() -> None:
    import numpy

    assert unmet(["numpy>=1.26", "numpy", f"numpy=={numpy.__version__}", "numpy<99,>=1"]) == []
    assert unmet(["numpy>=99", "no-such-package>=1", "numpy<1.0"]) == [
        f"numpy>=99, and {numpy.__version__} is installed",
        "no-such-package>=1, which is not installed",
        f"numpy<1.0, and {numpy.__version__} is installed",
    ]
    assert unmet(["no-such-package; extra == 'x'", "numpy~=9.9", "!!"]) == []  # not judged


def test_a_package_that_a_later_install_broke(install_plugin) -> None:
    site = install_plugin("vulkan")
    metadata = next(site.glob("*.dist-info")) / "METADATA"
    metadata.write_text(metadata.read_text() + "Requires-Dist: bitnet-core<0.1\n")
    assert any("bitnet-core<0.1" in finding.message for finding in version_findings())


def test_what_tools_say_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {
        "nvidia-smi": "echo 'Card X, 580.1, 8192 MiB, 3 MiB'",
        "vulkaninfo": "echo noise; echo 'deviceName = llvmpipe'; echo 'driverInfo = Mesa 1'",
        "clinfo": "echo broken >&2; exit 3",
        "rocm-smi": "sleep 30",
        "xpu-smi": 'echo "$1: Intel Arc A770"',
        "intel_gpu_top": 'echo "card0 pci:vendor=8086 $*"',
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(vendor_tools, "_SECONDS", 0.5)
    said = {finding.code: finding.message for finding in vendor_tools.tool_findings()}
    assert said == {
        "nvidia-smi": f"{shlex.join(next(one for one in vendor_tools._TOOLS if one[0] == 'nvidia-smi'))}\n"
        "Card X, 580.1, 8192 MiB, 3 MiB",
        "vulkaninfo": "vulkaninfo --summary\ndeviceName = llvmpipe\ndriverInfo = Mesa 1",
        "clinfo": "clinfo --list\nfails with code 3: broken",
        "rocm-smi": "rocm-smi --showid --showtemp\ndoes not answer within 0.5 s: its driver hangs",
        "xpu-smi": "xpu-smi discovery\ndiscovery: Intel Arc A770",
        "intel_gpu_top": "intel_gpu_top -L\ncard0 pci:vendor=8086 -L",
    }
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert vendor_tools.tool_findings() == []


@pytest.mark.parametrize(
    ("free", "severity", "text"),
    [
        (64 << 30, "info", "0: yes, weights"),
        (1500 << 20, "info", "yes, with a smaller cache or fewer requests"),
        (1 << 30, "warning", "no, it takes 1."),
    ],
)
def test_does_this_model_fit(faulty: Any, free: int, severity: str, text: str) -> None:
    """The shape of 2B-4T: 1.1 GiB of weights, and scratch."""
    info = {"type": DeviceType.SOFTWARE, "transfer": TransferMode.EXPLICIT_COPY, "max_allocation": 0, "max_binding": 0}
    device = faulty(**info)
    device.inner.free_memory = lambda: free
    finding = _fit(SyntheticSource("2b4t"), device)
    assert (finding.severity, finding.code) == (severity, "model-fits")
    assert text in finding.message


def test_doctor_tells_of_a_model(bitnet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor_tools, "_TOOLS", ())
    result = bitnet("doctor", "--model", "stories", "--json")
    assert result.code == 0
    fits = [one for one in json.loads(result.out)["findings"] if one["code"] == "model-fits"]
    assert [one["message"].startswith("numpy:0: yes, weights 0.0") for one in fits] == [True]

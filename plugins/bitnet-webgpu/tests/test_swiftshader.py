"""The kit's kernels on SwiftShader through wgpu: other limits than llvmpipe's (1 GiB bindings, offsets of 256 bytes,
ten storage buffers), and no shader-f16. It comes with Chromium."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.again]

DRIVER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
"""Manifest of SwiftShader in Debian's package."""
KIT = Path(__file__).with_name("test_conformance.py")
QUICK = "test_kernel and not kernel_resources and not many-outs and not t512 and not ten_thousand and not 70001"
SECONDS = 400
_NAME = "from bitnet_webgpu.describe import device_infos; print(device_infos()[0].name)"


@pytest.fixture
def environment() -> dict[str, str]:
    if not DRIVER.exists():
        assert os.environ.get("CI") != "true", "CI installs chromium"
        pytest.skip("it needs chromium (apt install chromium)")
    return os.environ | {"VK_DRIVER_FILES": str(DRIVER)}


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)


def test_the_kits_kernels(environment: dict[str, str]) -> None:
    assert "SwiftShader" in python(environment, "-c", _NAME).stdout
    options = ("-q", "-p", "no:cacheprovider", "--require-device", "-k", QUICK)
    found = python(environment, "-m", "pytest", *options, str(KIT))
    assert found.returncode == 0, found.stdout[-3000:]
    assert "skipped" not in found.stdout.splitlines()[-1]

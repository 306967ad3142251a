"""Devices that fail in the middle of a run, as the command line shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bitnet_core.receipt_checks import verify_receipt

PROMPT = "Once upon a time"

DEVICE = """
from dataclasses import replace
from bitnet_hal.errors import DeviceLostError, OutOfMemoryError
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice

Backend.devices = lambda self: [
    replace(numpy_info(), backend=self.name, name="frail card", type=DeviceType.GPU, physical_id="0000:03:00.0")
]
Backend.open = lambda self, index: Frail(self.devices()[index])
"""
LOST = """
class Frail(NumpyDevice):
    downloads = 0

    def download(self, src, dst):
        self.downloads += 1
        if self.downloads > 3:
            raise DeviceLostError("the card fell off the bus", backend="cuda", code="CUDA_ERROR_DEVICE_LOST (999)")
        super().download(src, dst)
"""
FULL = """
class Frail(NumpyDevice):
    def alloc(self, nbytes, kind=None):
        raise OutOfMemoryError("no room", requested=nbytes, free=0, backend="cuda", hint="Use a smaller context")
"""


def test_auto_goes_on_with_the_same_text_when_the_device_is_lost(bitnet, install_plugin, tmp_path: Path) -> None:
    expected = bitnet("run", PROMPT, "-n", 24, "--device", "numpy").out
    install_plugin("cuda", DEVICE + LOST)
    path = tmp_path / "receipt.json"
    result = bitnet("run", PROMPT, "-n", 24, "--receipt", path)
    assert (result.code, result.out) == (0, expected)
    assert "frail card" in result.err
    receipt = verify_receipt(path)
    assert receipt["compute_path"] == "fallback"
    assert receipt["device"]["backend"] == "numpy"
    assert "fell off the bus" in json.dumps(receipt["startup"]["skipped"])


FAILS = """
from bitnet_hal.errors import GpuTimeoutError, KernelCompileError, LaunchError, UnsupportedError

class Frail(NumpyDevice):
    calls = 0

    def {method}(self, *arguments):
        self.calls += 1
        if self.calls > {after}:
            raise {error}
        return super().{method}(*arguments)
"""


@pytest.mark.parametrize(
    ("method", "after", "error"),
    [
        ("compile", 0, "KernelCompileError('no compiler', kernel='embed', log='')"),
        ("compile", 6, "KernelCompileError('no compiler', kernel='embed', log='')"),
        ("launch", 40, "LaunchError('grid refused')"),
        ("tuning", 3, "UnsupportedError('no dot product')"),
        ("replay", 9, "GpuTimeoutError('hangs')"),
        ("upload", 2, "LaunchError('queue refused')"),
    ],
)
def test_auto_always_ends_in_text_and_a_named_device_fails_loudly(
    bitnet, install_plugin, method: str, after: int, error: str
) -> None:
    expected = bitnet("run", PROMPT, "-n", 24, "--device", "numpy").out
    install_plugin("cuda", DEVICE + FAILS.format(method=method, after=after, error=error))
    result = bitnet("run", PROMPT, "-n", 24)
    assert (result.code, result.out) == (0, expected)
    message = error.split("'")[1]
    for arguments in (["--device", "cuda"], ["--no-fallback"]):
        refused = bitnet("run", PROMPT, "-n", 24, *arguments)
        assert refused.code == 1
        assert message in refused.err


def test_going_on_is_said_once(bitnet, install_plugin, caplog: pytest.LogCaptureFixture) -> None:
    install_plugin("cuda", DEVICE + FAILS.format(method="launch", after=40, error="LaunchError('grid refused')"))
    assert bitnet("run", PROMPT, "-n", 24).code == 0
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "cuda:0 failed (grid refused); continuing on numpy:0"
    ]


def test_a_named_device_that_is_lost_is_code_12(bitnet, install_plugin) -> None:
    install_plugin("cuda", DEVICE + LOST)
    result = bitnet("run", PROMPT, "-n", 24, "--device", "cuda")
    assert result.code == 12
    assert "CUDA_ERROR_DEVICE_LOST (999)" in result.err


def test_a_named_device_without_room_is_code_13(bitnet, install_plugin) -> None:
    install_plugin("cuda", DEVICE + FULL)
    result = bitnet("run", PROMPT, "--device", "cuda")
    assert result.code == 13
    assert "no room" in result.err
    assert "use a smaller model" in result.err


def test_auto_goes_on_where_the_model_does_not_fit(bitnet, install_plugin, tmp_path: Path) -> None:
    install_plugin("cuda", DEVICE + FULL)
    path = tmp_path / "receipt.json"
    result = bitnet("run", PROMPT, "-n", 4, "--receipt", path)
    assert (result.code, "compute path fallback" in result.err) == (0, True)
    assert "no room" in json.dumps(verify_receipt(path)["startup"]["skipped"])

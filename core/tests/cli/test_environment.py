"""Every variable in docs/environment.md changes something that can be observed, and no other is documented."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bitnet_core.receipt import _overrides
from bitnet_hal.device import DeviceType
from bitnet_hal.discovery.driver_cache import key
from bitnet_hal.discovery.known import KNOWN
from bitnet_hal.discovery.request import resolve_request
from bitnet_hal.discovery.selection import devices, open_device
from bitnet_hal.environment import strict_mode
from bitnet_hal.waiting import wait_limit

PAGE = Path(__file__).parents[3] / "docs" / "environment.md"


def documented() -> list[str]:
    """Return the variables of the page's tables and of the section about the hub."""
    text = PAGE.read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    rows.append(next(line for line in text.splitlines() if line.startswith("Downloads of `hf:`")))
    return list(dict.fromkeys(re.findall(r"`([A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+)", "\n".join(rows))))


def requested() -> str:
    return str(resolve_request(None))


def listed() -> list[str]:
    return [info.request for info in devices()]


def opened() -> str:
    device, _ = open_device()
    device.close()
    return device.info.request


def cpu() -> dict[str, Any]:
    describe = pytest.importorskip("bitnet_cpu.describe")
    return dict(describe.cpu_info().extra)


def gpu_limit() -> float:
    return wait_limit(DeviceType.GPU)


def keys() -> str:
    pytest.importorskip("bitnet_server")
    code = (
        "import sys, bitnet_server.command as c; from bitnet_core.cli.app import main\n"
        "c._start = lambda settings, *_: print(settings.api_keys); sys.argv = ['bitnet', 'serve']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def left_out() -> set[str]:
    found: set[str] = pytest.importorskip("bitnet_vulkan.abilities").disabled_abilities()
    return found


def hub_constant(name: str) -> Callable[[], str]:
    def read() -> str:
        code = f"import huggingface_hub as h; from huggingface_hub import constants, utils; print({name})"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    return read


def in_receipt_and_cache() -> tuple[dict[str, str], list[str]]:
    """The driver's own variables: a receipt names them, and a remembered answer of the driver counts no longer."""
    return _overrides(), [key(name, "1") for name in KNOWN]


EFFECTS: dict[str, tuple[str, Callable[[], object]]] = {
    "BITNET_DEVICE": ("vulkan", requested),
    "BITNET_GPU_BACKEND": ("vulkan", requested),
    "BITNET_GPU_DEVICE": ("3", requested),
    "BITNET_CONFIG": ("{config}", requested),
    "BITNET_STRICT_MODE": ("1", strict_mode),
    "BITNET_GPU_FAKE": ("cuda", listed),
    "BITNET_STRICT_NO_FAKE_GPU": ("1", opened),
    "BITNET_CPU_KERNEL": ("portable", cpu),
    "BITNET_NUM_THREADS": ("77", cpu),
    "BITNET_GPU_TIMEOUT": ("9", gpu_limit),
    "BITNET_API_KEY": ("secret", keys),
    "BITNET_VULKAN_WITHOUT": ("dot", left_out),
    "HF_TOKEN": ("hf_abc", hub_constant("utils.get_token()")),
    "HF_HOME": ("/elsewhere", hub_constant("constants.HF_HUB_CACHE")),
    "HF_ENDPOINT": ("http://localhost:9", hub_constant("constants.ENDPOINT")),
    "HF_HUB_OFFLINE": ("1", hub_constant("constants.HF_HUB_OFFLINE")),
    **{name: ("0", in_receipt_and_cache) for backend in KNOWN.values() for name in backend.variables},
}
BESIDE = {
    "BITNET_GPU_DEVICE": {"BITNET_GPU_BACKEND": "cuda"},
    "BITNET_STRICT_NO_FAKE_GPU": {"BITNET_GPU_FAKE": "cuda"},
}
"""Variables without which another one has no meaning."""


def outcome(function: Callable[[], object]) -> str:
    try:
        return repr(function())
    except Exception as error:  # noqa: BLE001 - an error is an effect too
        return repr(error)


@pytest.mark.parametrize("name", [name for name in documented() if name != "BITNET_LOG"])
def test_a_documented_variable_has_an_effect(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text("device = 'rocm'")
    value, effect = EFFECTS[name]
    for other, needed in BESIDE.get(name, {}).items():
        monkeypatch.setenv(other, needed)
    monkeypatch.delenv(name, raising=False)
    without = outcome(effect)
    monkeypatch.setenv(name, value.format(config=tmp_path / "config.toml"))
    assert outcome(effect) != without


def test_the_level_of_logs_has_an_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from bitnet_core.cli.app import main; main()"
    command = [sys.executable, "-c", code, "run", "a", "-n", "1", "-d", "numpy"]
    for level, shown in (("info", True), ("error", False)):
        monkeypatch.setenv("BITNET_LOG", f"bitnet_hal={level}")
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert ("requested=numpy detected=" in said) is shown


def test_the_page_names_every_variable() -> None:
    assert set(documented()) == {*EFFECTS, "BITNET_LOG"}


@pytest.mark.parametrize(
    ("backend", "name", "value"),
    [
        ("opencl", "OCL_ICD_VENDORS", "/nonexistent"),
        ("opencl", "POCL_DEVICES", "basic basic"),
        ("vulkan", "VK_DRIVER_FILES", "/nonexistent"),
        ("vulkan", "VK_ICD_FILENAMES", "/nonexistent"),
        ("vulkan", "VK_INSTANCE_LAYERS", "VK_LAYER_no_such"),
        ("webgpu", "WGPU_BACKEND", "metal"),
        ("webgpu", "WGPU_BACKEND_TYPE", "Metal"),
        ("webgpu", "WGPU_ADAPTER_NAME", "no such card"),
    ],
)
def test_a_driver_s_variable_changes_what_a_backend_lists(
    backend: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        f"import bitnet_{backend}.describe as d; from bitnet_hal.discovery.registry import registry\n"
        f"print([(i.request, i.name) for i in registry().devices('{backend}')])"
    )

    def show() -> str:
        pytest.importorskip(f"bitnet_{backend}")
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout

    monkeypatch.delenv(name, raising=False)
    without = show()
    if without in ("", "[]\n"):
        pytest.skip(f"no driver of {backend} (Debian: pocl-opencl-icd, mesa-vulkan-drivers)")
    monkeypatch.setenv(name, value)
    assert show() != without

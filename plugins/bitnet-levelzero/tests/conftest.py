"""The real loader with its validation layer, over the test driver of driver/, which runs SPIR-V on Intel's CPU runtime.

All of it is in the environment that the loader reads, so it is set before anything is loaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bitnet_core.errors import BackendUnavailableError
from bitnet_levelzero.compile import Compiler
from bitnet_levelzero.describe import find_devices
from bitnet_levelzero.device import LevelZeroDevice

SOURCES = [str(Path(__file__).parent / "driver" / name) for name in ("driver.c", "tables.c")]
RUNTIME = Path(sys.prefix) / "lib" / "libintelocl.so"
SET = {
    "ZE_ENABLE_VALIDATION_LAYER": "1",
    "ZE_ENABLE_PARAMETER_VALIDATION": "1",
}
_KEEP = Compiler._keep


def pytest_configure(config: pytest.Config) -> None:
    """Build the driver, unless a device of this machine is to be tested (BITNET_LEVELZERO_DEVICE=1)."""
    if os.environ.get("BITNET_LEVELZERO_DEVICE") or not RUNTIME.exists() or shutil.which("cc") is None:
        return
    folder = Path(tempfile.mkdtemp(prefix="bitnet-levelzero-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    driver = folder / "libdriver.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", driver, *SOURCES, "-lOpenCL"], check=True
    )
    (folder / "intel.icd").write_text(f"{RUNTIME}\n", encoding="utf-8")
    os.environ.update(SET, ZE_ENABLE_ALT_DRIVERS=str(driver), OCL_ICD_VENDORS=str(folder))


@pytest.fixture(scope="session", autouse=True)
def keeping_nothing() -> Iterator[None]:
    """Native programs stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compiler, "_keep", lambda *args: None)
        yield


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder where they are kept in this test."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *args, **kwargs: str(tmp_path))
    monkeypatch.setattr(Compiler, "_keep", _KEEP)
    return tmp_path


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[LevelZeroDevice]:
    """A device of its own for each test; its absence is an error in CI and a skip elsewhere."""
    try:
        found = find_devices()
    except BackendUnavailableError as error:
        if os.environ.get("CI") == "true" or request.config.getoption("--require-device", default=False):
            raise
        pytest.skip(str(error))
    device = LevelZeroDevice(found[0])
    yield device
    device.close()

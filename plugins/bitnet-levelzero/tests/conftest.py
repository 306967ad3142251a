"""The real loader with its validation layer, over the test driver of driver/, which runs SPIR-V on Intel's CPU runtime.

All of it is in the environment that the loader reads, so it is set before anything is loaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bitnet_hal.errors import BackendUnavailableError
from bitnet_levelzero.describe import usable
from bitnet_levelzero.device import LevelZeroDevice

SOURCES = [str(Path(__file__).parent / "driver" / name) for name in ("driver.c", "memory.c", "queue.c", "tables.c")]
RUNTIME = Path(sys.prefix) / "lib" / "libintelocl.so"
SET = {
    "ZE_ENABLE_VALIDATION_LAYER": "1",
    "ZE_ENABLE_PARAMETER_VALIDATION": "1",
}


def pytest_configure(config: pytest.Config) -> None:
    """Build the driver, unless a device of this machine is to be tested (BITNET_LEVELZERO_DEVICE=1)."""
    if os.environ.get("BITNET_LEVELZERO_DEVICE") or not RUNTIME.exists() or shutil.which("cc") is None:
        return
    folder = Path(tempfile.mkdtemp(prefix="bitnet-levelzero-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    driver = folder / "libdriver.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-Bsymbolic", "-o", driver, *SOURCES, "-lOpenCL"],
        check=True,
    )
    (folder / "intel.icd").write_text(f"{RUNTIME}\n", encoding="utf-8")
    os.environ.update(SET, ZE_ENABLE_ALT_DRIVERS=str(driver), OCL_ICD_VENDORS=str(folder))


@pytest.fixture(scope="session", autouse=True)
def programs_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Native programs are kept for the devices of this run, and stay out of the user's cache."""
    folder = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield


@pytest.fixture
def run() -> Callable[..., str]:
    """Return a function that runs Python code in a process with these variables and returns its output and errors."""

    def run_python(code: str, **environment: str) -> str:
        command, variables = [sys.executable, "-c", code], {**os.environ, **environment}
        process = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        return process.stdout + process.stderr

    return run_python


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[LevelZeroDevice]:
    """A device of its own for each test; its absence is an error in CI and a skip elsewhere."""
    try:
        found = usable()
    except BackendUnavailableError as error:
        if os.environ.get("CI") == "true" or request.config.getoption("--require-device", default=False):
            raise
        pytest.skip(str(error))
    device = LevelZeroDevice(found[0])
    yield device
    device.close()

"""Errors provoked on a real GPU, and what the driver says about it. Everything here skips where there is none.

Errors that kill a context run in a process of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from bitnet_cuda import compile
from bitnet_cuda.describe import device_infos
from bitnet_cuda.device import CudaDevice
from bitnet_hal.device import Tuning, whole
from bitnet_hal.errors import BackendUnavailableError, LaunchError, OutOfMemoryError
from bitnet_hal.kernels.base import RMS_NORM
from bitnet_hal.kernels.spec import KernelSpec

ARGUMENTS = "(const float* x, const int* index, const float* gamma, float* y, unsigned rows, unsigned width, float eps)"

FATAL = """
import sys
import numpy as np
from bitnet_hal.errors import DeviceLostError
from bitnet_hal.device import Tuning, whole
from bitnet_hal.kernels.base import RMS_NORM
from bitnet_cuda import compile
from bitnet_cuda.describe import device_infos
from bitnet_cuda.device import CudaDevice

device = CudaDevice(device_infos()[0])
buffer = device.alloc(64)
compile.source = lambda *_: sys.argv[1]
kernel = device.compile(RMS_NORM, {}, Tuning(private={"GROUP": 32}))
params = RMS_NORM.pack({"rows": 1, "width": 1, "eps": 0.0})
device.launch(kernel, (1, 1, 1), [whole(device.alloc(64)) for _ in range(4)], params)
for attempt in range(2):  # what is queued fails, and so does everything after it
    try:
        device.download(whole(buffer), memoryview(bytearray(64)))
        print("no error")
    except DeviceLostError as exc:
        print(exc.code, exc.hint)
try:
    device.free(buffer)
except DeviceLostError as exc:
    print("free:", exc)
device.close()
device.close()
print("closed")
"""


def gpus() -> int:
    """Return the number of GPUs; skip the test if there is none."""
    try:
        return len(device_infos())
    except BackendUnavailableError as exc:
        pytest.skip(f"no GPU here: {exc}")


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    gpus()
    device = CudaDevice(device_infos()[0])
    yield device
    device.close()


def works(device: CudaDevice) -> bool:
    """Return whether a kernel still runs and its result is right."""
    x = np.array([3, 4], np.float32)
    views = []
    for array in (x, np.zeros(1, np.int32), np.ones(2, np.float32), np.zeros(2, np.float32)):
        views.append(whole(device.alloc(array.nbytes)))
        device.upload(views[-1], array.view(np.uint8).data)
    kernel = device.compile(RMS_NORM, {}, Tuning(private={"GROUP": 512, "EACH": 1}))
    device.launch(kernel, (1, 1, 1), views, RMS_NORM.pack({"rows": 1, "width": 2, "eps": 0.0}))
    y = np.zeros(2, np.float32)
    device.download(views[-1], y.view(np.uint8).data)
    return bool(np.allclose(y, x / np.sqrt(12.5)))


def launch(device: CudaDevice, spec: KernelSpec, source: str, group: int, shared: int = 0) -> None:
    """Run a kernel of our own on one small buffer."""
    with patch.object(compile, "source", lambda *_: source):
        kernel = device.compile(spec, {}, Tuning(private={"GROUP": group, "SHARED": shared}))
    views = [whole(device.alloc(64)) for _ in range(4)]
    device.launch(kernel, (1, 1, 1), views, spec.pack({"rows": 1, "width": 1, "eps": 0.0}))
    device.synchronize()


def test_lack_of_memory_names_both_sizes_and_leaves_the_device_sound(device: CudaDevice) -> None:
    total = device.info.total_memory
    with pytest.raises(OutOfMemoryError) as caught:
        device.alloc(total)
    assert caught.value.requested == total
    assert 0 < caught.value.free < total
    assert "CUDA_ERROR_OUT_OF_MEMORY" in caught.value.code
    assert works(device)


def test_a_launch_with_too_many_threads_is_refused(device: CudaDevice) -> None:
    with pytest.raises(LaunchError, match="launch rms_norm failed") as caught:
        launch(device, RMS_NORM, f'extern "C" __global__ void rms_norm{ARGUMENTS} {{}}', 2048)
    assert "CUDA_ERROR_INVALID_VALUE" in caught.value.code
    assert works(device)


def test_a_launch_beyond_its_bounds_is_refused(device: CudaDevice) -> None:
    source = f'extern "C" __global__ void __launch_bounds__(32) rms_norm{ARGUMENTS} {{ y[0] = x[0] * eps; }}'
    with pytest.raises(LaunchError):
        launch(device, RMS_NORM, source, 1024)
    assert works(device)


def test_more_shared_memory_than_there_is_is_refused(device: CudaDevice) -> None:
    source = f'extern "C" __global__ void rms_norm{ARGUMENTS} {{}}'
    with pytest.raises(LaunchError, match="load kernel"):
        launch(device, RMS_NORM, source, 32, shared=1 << 20)
    assert works(device)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("*(volatile int*)8 = 1;", "CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
        ("*(volatile int*)((char*)y + 2) = 1;", "CUDA_ERROR_MISALIGNED_ADDRESS (716)"),
        ('asm("trap;");', "CUDA_ERROR_LAUNCH_FAILED (719)"),
    ],
    ids=["illegal-address", "misaligned-address", "trap"],
)
def test_a_dead_context_is_a_lost_device(body: str, code: str) -> None:
    gpus()
    source = f'extern "C" __global__ void rms_norm{ARGUMENTS} {{ {body} }}'
    command = [sys.executable, "-c", FATAL, source]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(code)
    assert "start it again" in lines[0]
    assert "lost" in lines[2]
    assert lines[3] == "closed"


def test_a_damaged_cubin_is_compiled_again(device: CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_, **__: str(tmp_path))
    assert works(device)
    (path,) = tmp_path.rglob("*.bin")
    whole_file = path.read_bytes()
    path.write_bytes(whole_file[:100] + b"\xff" * 100 + whole_file[200:])
    assert works(device)
    assert path.read_bytes() == whole_file


def listed(**environment: str) -> str:
    """Output of `bitnet devices -v` for these variables."""
    command = [sys.executable, "-c", "from bitnet_core.cli.app import main; main()", "devices", "-v"]
    variables = {**os.environ, "COLUMNS": "2000", **environment}
    result = subprocess.run(command, capture_output=True, text=True, env=variables, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout + result.stderr


def test_visible_devices_are_honoured() -> None:
    count = gpus()
    everything = listed()
    assert all(f"cuda:{index}" in everything for index in range(count))
    only_one = listed(CUDA_VISIBLE_DEVICES="0")
    assert "cuda:0" in only_one
    assert "cuda:1" not in only_one
    assert "cuda:0" not in listed(CUDA_VISIBLE_DEVICES="")


def test_every_gpu_can_be_opened() -> None:
    gpus()
    for index, info in enumerate(device_infos()):
        device = CudaDevice(info)
        try:
            assert device.info.request == f"cuda:{index}"
            assert works(device)
        finally:
            device.close()


def test_what_is_known_of_a_gpu() -> None:
    gpus()
    info = device_infos()[0]
    for name in (
        "multiprocessor_count",
        "max_threads_per_block",
        "max_shared_memory_per_block",
        "max_registers_per_block",
        "warp_size",
        "clock_khz",
        "memory_clock_khz",
        "memory_bus_bits",
        "l2_cache_bytes",
    ):
        assert int(info.extra[name]) > 0, name
    for name in ("ecc", "integrated", "unified_addressing", "concurrent_kernels"):
        assert info.extra[name] in (0, 1), name
    assert info.extra["device_id"] == info.index
    assert info.extra["total_memory"] == info.total_memory > 0
    assert info.extra["supports_fp16"] is True
    assert isinstance(info.extra["supports_bf16"], bool)
    assert info.extra["warp_size"] == 32


def test_name_and_memory_are_those_of_nvidia_smi() -> None:
    gpus()
    if shutil.which("nvidia-smi") is None or "CUDA_VISIBLE_DEVICES" in os.environ:
        pytest.skip("nvidia-smi is not there, or lists other GPUs than this process sees")
    command = ["nvidia-smi", "--query-gpu=name,memory.total,pci.bus_id", "--format=csv,noheader,nounits"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    known = {}
    for line in lines:
        name, memory, bus = (part.strip() for part in line.split(","))
        known[bus.lower()[-12:]] = name, int(memory)
    for info in device_infos():
        listed_name, listed_memory = known[info.physical_id[-12:]]
        assert info.name == listed_name
        assert abs(info.total_memory / 2**20 - listed_memory) < 0.02 * listed_memory


def test_no_gpu_is_one_line() -> None:
    code = "from bitnet_cuda.describe import device_infos; device_infos()"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    last = result.stderr.strip().splitlines()[-1]
    assert "BackendUnavailableError: cuda" in last
    assert any(hint in last for hint in ("Install the NVIDIA driver", "CUDA_VISIBLE_DEVICES", "nvidia-smi"))

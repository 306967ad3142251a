"""The parts of the plugin that need no device."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bitnet_core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    DeviceNotFoundError,
    GpuError,
    GpuTimeoutError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
    UnsupportedError,
)
from bitnet_core.kernels.catalogue import ATTENTION, CATALOGUE, MATMUL_DENSE, MATMUL_TERNARY
from bitnet_cuda import compiler, tuning
from bitnet_cuda.errors import TABLE, Status, check
from bitnet_cuda.query import OPTIONAL, TENSOR_CORE_KERNELS

SHAPE = {
    "width": 2560,
    "columns": 2560,
    "stride": 2560,
    "outs": 2560,
    "vocab": 32000,
    "n_heads": 20,
    "n_kv_heads": 5,
    "head_dim": 128,
}
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status.OUT_OF_MEMORY, OutOfMemoryError),
        (Status.NO_DEVICE, BackendUnavailableError),
        (Status.INVALID_DEVICE, DeviceNotFoundError),
        (Status.ILLEGAL_ADDRESS, DeviceLostError),
        (Status.LAUNCH_FAILED, DeviceLostError),
        (Status.LAUNCH_TIMEOUT, GpuTimeoutError),
        (Status.NO_BINARY_FOR_GPU, UnsupportedError),
        (Status.INVALID_VALUE, LaunchError),
        (Status.LAUNCH_OUT_OF_RESOURCES, LaunchError),
        (123456, LaunchError),
    ],
)
def test_every_status_has_its_class(status: int, error: type[GpuError]) -> None:
    with pytest.raises(error) as caught:
        check((status,), "try", device="d", requested=9, free=3)
    assert type(caught.value) is error
    assert str(int(status)) in caught.value.code
    assert caught.value.operation == "try"
    assert caught.value.hint or status not in Status._value2member_map_ or Status(status) not in TABLE


def test_success_gives_the_values() -> None:
    assert check((Status.SUCCESS, 1, 2), "try") == (1, 2)


def test_importing_the_plugin_loads_neither_driver_nor_bindings() -> None:
    code = "import sys, bitnet_cuda.plugin; print([m for m in sys.modules if m.startswith(('cuda', 'numpy'))])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def kernel_variants(tensor_cores: bool) -> Iterator[tuple[str, dict[str, int]]]:
    """Every source with every value of its semantic constants for one row, and every other tile once."""
    for spec in CATALOGUE.values():
        if not (spec.base or spec.name in OPTIONAL or (tensor_cores and spec.name in TENSOR_CORE_KERNELS)):
            continue
        longest = max((len(values) for values in spec.constants.values()), default=1)
        seen = []
        for rows, i in itertools.product((1, 8, 16, 32, 64, 512), range(longest)):
            constants = {name: values[i % len(values)] for name, values in spec.constants.items()}
            tuned = tuning.choose(spec, constants, {"rows": rows, **SHAPE}, tensor_cores=tensor_cores)
            if rows == 1 or tuned not in seen:
                yield spec.name, {**constants, **tuned}
            seen.append(tuned)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles(architecture: str) -> None:
    """All variants for the oldest path and for Hopper, every source once for the others, to save time."""
    done = set()
    for name, constants in kernel_variants(tensor_cores=architecture != "sm_75"):
        path = compiler.source_file(CATALOGUE[name], constants)
        if architecture not in ("sm_75", "sm_90") and path in done:
            continue
        done.add(path)
        source = compiler.source_text(path, constants)
        assert compiler.compile_cubin(name, source, architecture)[:4] == b"\x7fELF"


@pytest.mark.parametrize("rows", [128, 512])
def test_warpgroup_products_compile(rows: int) -> None:
    constants = {"ADD": 1}
    constants |= tuning.choose(MATMUL_TERNARY, constants, {"rows": rows, **SHAPE}, tensor_cores=True, wgmma=True)
    source = compiler.source_text(compiler.source_file(MATMUL_TERNARY, constants), constants)
    assert "wgmma" in source
    assert compiler.compile_cubin("matmul_ternary", source, "sm_90a")[:4] == b"\x7fELF"


def test_a_broken_source_gives_the_log() -> None:
    with pytest.raises(KernelCompileError, match="does not compile for sm_90") as caught:
        compiler.compile_cubin("broken", "__global__ void broken() { undeclared = 1; }", "sm_90")
    assert "undeclared" in caught.value.log
    assert caught.value.kernel == "broken"


def test_the_cache_is_used_and_a_damaged_entry_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def compile_(name: str, source: str, architecture: str) -> bytes:
        calls.append(name)
        return b"cubin of " + source.encode()

    monkeypatch.setattr(compiler, "compile_cubin", compile_)
    monkeypatch.setattr(compiler.platformdirs, "user_cache_dir", lambda name: str(tmp_path))
    assert compiler.cached_cubin("k", "a", "sm_90") == compiler.cached_cubin("k", "a", "sm_90")
    assert len(calls) == 1
    compiler.cached_cubin("k", "a", "sm_80")
    compiler.cached_cubin("k", "b", "sm_90")
    assert len(calls) == 3
    for path in tmp_path.rglob("*.cubin"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert compiler.cached_cubin("k", "a", "sm_90") == b"cubin of a"
    assert len(calls) == 4


@pytest.mark.parametrize("rows", [9, 16, 17, 32, 33, 64, 65, 512, 1024])
@pytest.mark.parametrize("outs", [64, 640, 3840, 13824, 128256])
@pytest.mark.parametrize("width", [128, 2560, 6912, 28672])
def test_tiles_fit_the_shared_memory_of_their_gpus(rows: int, outs: int, width: int) -> None:
    params = {**SHAPE, "rows": rows, "outs": outs, "width": width}
    for spec, constants in ((MATMUL_TERNARY, {"ADD": 0}), (MATMUL_DENSE, {"DTYPE": 1}), (ATTENTION, {"KV": 1})):
        tile = tuning.choose(spec, constants, params, tensor_cores=True)
        assert tile.get("SHARED", 0) <= 98 << 10  # 99 KiB on compute capability 8.6, 8.9 and 12.0
        assert 32 <= tile["GROUP"] <= 1024
        assert tile["GROUP"] % 32 == 0
        hopper = tuning.choose(spec, constants, params, tensor_cores=True, wgmma=True)
        assert hopper.get("SHARED", 0) * hopper.get("RESIDENT", 1) <= 226 << 10


def test_steps_of_other_sizes_take_other_kernels() -> None:
    def stem(rows: int, **gpu: bool) -> str:
        tuned = tuning.choose(MATMUL_TERNARY, {"ADD": 0}, {"rows": rows, **SHAPE}, **gpu)
        return compiler.source_file(MATMUL_TERNARY, tuned).stem.removeprefix("matmul_ternary")

    assert [stem(rows, tensor_cores=True) for rows in (1, 32, 64, 512)] == ["_few", "_batch", "_mma", "_mma"]
    assert stem(512, tensor_cores=True, wgmma=True) == "_wgmma"
    assert [stem(rows, tensor_cores=False) for rows in (1, 512)] == ["", ""]

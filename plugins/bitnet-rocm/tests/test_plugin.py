"""The parts of the plugin that need no device."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from bitnet_hal.errors import (
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
from bitnet_hal.kernels.base import MATMUL_TERNARY
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_rocm import compile, driver, tuning
from bitnet_rocm.errors import COMPILING, TABLE, check
from bitnet_rocm.kernels.portable.tiles import MEETINGS
from hip import hip, hiprtc


@pytest.mark.parametrize("status", [status for status in hip.hipError_t if int(status)], ids=lambda s: str(s.name))
def test_every_status_has_a_class_and_a_hint(status: hip.hipError_t) -> None:
    assert int(status) in TABLE, "hip-python knows a status that the table lacks"
    with pytest.raises(TABLE[int(status)][0]) as caught:
        check((status,), "try", device="d", requested=9, free=3)
    assert caught.value.code == f"{status.name} ({int(status)})"
    assert caught.value.operation == "try"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("hipErrorOutOfMemory", OutOfMemoryError),
        ("hipErrorNoDevice", BackendUnavailableError),
        ("hipErrorInvalidDevice", DeviceNotFoundError),
        ("hipErrorIllegalAddress", DeviceLostError),
        ("hipErrorLaunchFailure", DeviceLostError),
        ("hipErrorLaunchTimeOut", GpuTimeoutError),
        ("hipErrorNoBinaryForGpu", UnsupportedError),
        ("hipErrorInvalidValue", LaunchError),
        ("hipErrorStreamCaptureUnsupported", LaunchError),
    ],
)
def test_the_classes_that_matter(name: str, error: type[GpuError]) -> None:
    with pytest.raises(error):
        check((hip.hipError_t[name],), "try")


@pytest.mark.parametrize("status", [s for s in hiprtc.hiprtcResult if int(s)], ids=lambda s: str(s.name))
def test_every_status_of_the_compiler_has_a_hint(status: hiprtc.hiprtcResult, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_log(program: object, log: bytearray) -> tuple[int]:
        log[:] = b"the log\0"
        return (0,)

    destroyed = []
    fakes = {
        "Version": lambda: (0, 9, 0),
        "CreateProgram": lambda *_: (0, SimpleNamespace(createRef=lambda: "reference")),
        "CompileProgram": lambda *_: (status,),
        "GetProgramLogSize": lambda program: (0, 8),
        "GetProgramLog": write_log,
        "DestroyProgram": destroyed.append,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(hiprtc, f"hiprtc{name}", fake)
    with pytest.raises(KernelCompileError, match="kernel k does not compile for gfx1100") as caught:
        compile.compile_code("k", "source", "gfx1100")
    assert caught.value.log == "the log"
    assert caught.value.code == f"{status.name} ({int(status)})"
    assert caught.value.hint == COMPILING[int(status)]
    assert destroyed == ["reference"]


def test_compiled_code_is_kept_by_architecture_source_and_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And by the width of waves, if it is not the compiler's choice."""
    made: list[tuple[str, str, str, int]] = []

    def make(name: str, source: str, architecture: str, wave: int) -> bytes:
        made.append((name, source, architecture, wave))
        return f"{name}{source}{architecture}".encode()

    monkeypatch.setattr(compile, "compile_code", make)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_, **__: str(tmp_path))
    first = ("k", "source", "gfx90a:sramecc+:xnack-", "60443483")
    others = [("k", "other", *first[2:]), ("k", "source", "gfx90a:sramecc-:xnack-", first[3]), (*first[:3], "60443484")]
    for what in (first, first, *others, *others):
        assert compile.cached_code(*what) == "".join(what[:3]).encode()
    assert len(made) == 4
    compile.cached_code(*first, 64)
    assert made[4:] == [(*first[:3], 64)]


def test_hints_name_the_fix() -> None:
    assert "BIOS" in TABLE[2][1]  # an APU's share of the memory
    assert "bitnet-vulkan" in TABLE[209][1]
    for refused in (5, 6):
        assert "HSA_OVERRIDE_GFX_VERSION" in COMPILING[refused]
        assert "at your own risk" in COMPILING[refused]


def test_success_gives_the_values() -> None:
    assert check((0, 1, 2), "try") == (1, 2)


def test_importing_the_plugin_loads_neither_driver_nor_bindings() -> None:
    code = "import sys, bitnet_rocm.plugin; print([m for m in sys.modules if m.startswith(('hip', 'rocm', 'numpy'))])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_without_rocm_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise RuntimeError("failed to dlopen 'b'libamdhip64.so'': b'libamdhip64.so: cannot open shared object file'")

    monkeypatch.setattr(hip, "hipInit", missing)
    driver.driver.cache_clear()
    with pytest.raises(
        BackendUnavailableError, match=r"loaded: libamdhip64\.so: cannot open shared object file "
    ) as caught:
        driver.driver()
    assert "Install ROCm" in caught.value.hint
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(BackendUnavailableError) as caught:
        driver.driver()
    assert "HIP SDK" in caught.value.hint


def test_a_user_outside_the_render_group_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    door = tmp_path / "kfd"
    door.touch()
    monkeypatch.setattr(driver, "KFD", door)
    monkeypatch.setattr(hip, "hipInit", lambda flags: (hip.hipError_t.hipErrorNoDevice,))
    monkeypatch.setattr(hip, "hipGetDeviceCount", lambda: (hip.hipError_t.hipErrorNoDevice, 0))
    driver.driver.cache_clear()
    monkeypatch.setattr("os.access", lambda path, mode: path != door)
    with pytest.raises(BackendUnavailableError) as caught:
        driver.driver()
    assert "usermod -aG render" in caught.value.hint
    monkeypatch.setattr("os.access", lambda path, mode: True)
    with pytest.raises(BackendUnavailableError) as caught:
        driver.driver()
    assert "rocminfo" in caught.value.hint


def test_parts_of_attention_fit_the_workspace() -> None:
    shapes = ((1, 1), (3, 1), (11, 1), (20, 5), (32, 8), (64, 8), (40, 40))
    for rows, (heads, kv_heads), head_dim in itertools.product((1, 2, 8, 33, 512), shapes, (6, 32, 64, 80, 128, 256)):
        params = {"rows": rows, "n_heads": heads, "n_kv_heads": kv_heads, "head_dim": head_dim}
        tuned = tuning.select_tuning(CATALOGUE["rope_attention"], {"KV": 1}, params, 304)
        tile, lanes = tuned.tile, tuned.private["LANES"]
        assert heads // kv_heads % tile["TILE_N"] == 0
        assert 32 % lanes == 0
        assert 8 * lanes >= head_dim
        if tile["SPLITS"] > 1:
            parts = 4 * rows * heads * tile["SPLITS"] * (head_dim + 4)
            assert 4 * MEETINGS + parts <= tuned.workspace
            assert rows * heads // tile["TILE_N"] <= MEETINGS


@pytest.mark.parametrize(
    "architecture", ["gfx90a:sramecc+:xnack-", "gfx942", "gfx1100", "gfx1151", "gfx1201", "gfx1030", "gfx906"]
)
def test_prompts_take_the_matrix_cores_where_there_are_some(architecture: str) -> None:
    for rows, outs in itertools.product((9, 33, 64, 65, 512, 2048), (17, 640, 2560, 13824)):
        params = {"rows": rows, "outs": outs, "width": 2560}
        tuned = tuning.select_tuning(MATMUL_TERNARY, {"ADD": 0}, params, 60, architecture)
        assert (tuned.variant == "matrix") == (architecture not in ("gfx1030", "gfx906"))
        if tuned.variant == "matrix":
            waves_n, waves_t = tuned.private["WAVES_N"], tuned.private["WAVES_T"]
            wave = tuned.private["GROUP"] // (waves_n * waves_t)
            assert wave == (64 if architecture.startswith("gfx9") else 32)
            assert tuned.tile["TILE_N"] % (16 * waves_n) == tuned.tile["TILE_T"] % (16 * waves_t) == 0


def test_blocks_are_whole_warps() -> None:
    for rows, width in itertools.product((1, 8, 512), (128, 2560, 6912, 28672)):
        params = {"rows": rows, "stride": width, "width": width, "outs": 64, "y_stride": 64, "y_first": 0}
        for name in ("rms_norm_quantize", "glu_norm_quantize"):
            group = tuning.select_tuning(CATALOGUE[name], {}, params, 60).private["GROUP"]
            assert group % 32 == 0
            assert group <= 1024
        tuned = tuning.select_tuning(MATMUL_TERNARY, {"ADD": 0}, params, 60)
        assert tuned.private["GROUP"] // tuned.tile["TILE_N"] in (1, 2, 4, 8, 16, 32)

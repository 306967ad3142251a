"""The parts of the plugin that need no device."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bitnet_cuda import compile, driver, invariant_tiles, tensor_tiles, tuning
from bitnet_cuda.describe import OPTIONAL, TENSOR_CORE_KERNELS
from bitnet_cuda.errors import TABLE, check
from bitnet_hal.device import Tuning
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
from bitnet_hal.kernels.base import ATTENTION, MATMUL_DENSE, MATMUL_TERNARY, MATMUL_TERNARY_BLOCK
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec

SHAPE = {
    "width": 2560,
    "columns": 2560,
    "stride": 2560,
    "outs": 2560,
    "y_stride": 2560,
    "y_first": 0,
    "vocab": 32000,
    "n_heads": 20,
    "n_kv_heads": 5,
    "head_dim": 128,
    "block": 1024,
    "channels": 10240,
    "taps": 4,
    "n_key_heads": 4,
    "key_dim": 128,
    "value_dim": 128,
    "groups": 4,
}
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
SAME_SOURCE = dict.fromkeys(("sm_86", "sm_89"), pytest.mark.again)
"""Architectures for which the kernels' preprocessor leaves the text of sm_80."""


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (2, OutOfMemoryError),
        (100, BackendUnavailableError),
        (101, DeviceNotFoundError),
        (200, UnsupportedError),
        (209, UnsupportedError),
        (700, DeviceLostError),
        (702, GpuTimeoutError),
        (719, DeviceLostError),
        (1, LaunchError),
        (701, LaunchError),
        (123456, LaunchError),
    ],
)
def test_every_status_has_its_class(status: int, error: type[GpuError]) -> None:
    with pytest.raises(error) as caught:
        check((status,), "try", device="d", requested=9, free=3)
    assert type(caught.value) is error
    assert str(int(status)) in caught.value.code
    assert caught.value.operation == "try"
    assert caught.value.hint or status not in TABLE


def test_success_gives_the_values() -> None:
    assert check((0, 1, 2), "try") == (1, 2)


def test_importing_the_plugin_loads_neither_driver_nor_bindings() -> None:
    code = "import sys, bitnet_cuda.plugin; print([m for m in sys.modules if m.startswith(('cuda', 'numpy'))])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


@pytest.mark.parametrize("version", [12040, 12090])
def test_an_old_driver_is_named_with_the_version_that_is_needed(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = pytest.importorskip("cuda.bindings.driver")
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(bindings, "cuInit", lambda flags: (0,))
    monkeypatch.setattr(bindings, "cuDriverGetVersion", lambda: (0, version))
    driver.driver.cache_clear()
    with pytest.raises(
        BackendUnavailableError, match=rf"CUDA 12\.{version % 1000 // 10}, and 13\.0 is needed"
    ) as caught:
        driver.driver()
    assert "580" in caught.value.hint


Variant = tuple[KernelSpec, dict[str, int], Tuning]


def kernels(architecture: str) -> list[KernelSpec]:
    """Return the kernels that the plugin offers on an architecture."""
    tensor_cores = architecture != "sm_75"
    optional = {*OPTIONAL, *(TENSOR_CORE_KERNELS if tensor_cores else ())}
    return [spec for spec in CATALOGUE.values() if spec.base or spec.name in optional]


def kernel_variants(architecture: str, specs: list[KernelSpec]) -> Iterator[Variant]:
    """Yield each source with all values of its semantic constants for one row, and each other tile once."""
    tensor_cores = architecture != "sm_75"
    for spec in specs:
        longest = max((len(values) for values in spec.constants.values()), default=1)
        diagonal = [{name: values[i % len(values)] for name, values in spec.constants.items()} for i in range(longest)]
        every = [
            dict(zip(spec.constants, values, strict=True)) for values in itertools.product(*spec.constants.values())
        ]
        seen = []
        own = itertools.product((tuning.select_tuning,), (1, 8, 16, 32, 64, 512), diagonal + every)
        invariant = itertools.product((invariant_tiles.select_tuning,), (8, 9, 64), diagonal)
        for select, rows, constants in itertools.chain(own, invariant):
            semantic = constants if constants.get("BLOCK") != 0 else {**constants, "ABLOCK": 0}
            try:
                tuned = select(
                    spec, semantic, {"rows": rows, **SHAPE}, tensor_cores=tensor_cores, wgmma=architecture == "sm_90a"
                )
            except UnsupportedError:
                assert not spec.base
                continue
            if tuned.key not in seen or (rows == 1 and constants in diagonal):
                yield spec, semantic, tuned
            seen.append(tuned.key)
    gates, launch = CATALOGUE["matmul_dense"], ({"DTYPE": 1}, {"rows": 1, **SHAPE, "outs": 96})
    yield (
        gates,
        launch[0],
        tuning.select_tuning(gates, *launch, tensor_cores=tensor_cores, wgmma=architecture == "sm_90a"),
    )


@pytest.mark.slow  # minutes of NVRTC
@pytest.mark.parametrize(
    ("architecture", "kernel"),
    [
        pytest.param(architecture, spec, id=f"{architecture}-{spec.name}", marks=SAME_SOURCE.get(architecture, ()))
        for architecture in ARCHITECTURES
        for spec in kernels(architecture)
    ],
)
def test_every_kernel_compiles(architecture: str, kernel: KernelSpec) -> None:
    """Compile all variants for 9.0, and each source once for other architectures, to save time."""
    done = set()
    for spec, constants, tuned in kernel_variants(architecture, [kernel]):
        source = spec.name, tuned.variant
        if architecture != "sm_90a" and source in done:
            continue
        done.add(source)
        text = compile.source(spec, constants, tuned)
        assert compile.compile_cubin(spec.name, text, architecture)[:4] == b"\x7fELF"
    assert done


def tilings_on_offer(architecture: str) -> dict[str, Variant]:
    """Return the tunings that `bitnet tune` measures beside the selected ones, by source, for the sizes of 2B-4T."""
    found: dict[str, Variant] = {}
    gpu = {"tensor_cores": architecture != "sm_75", "wgmma": architecture == "sm_90a"}
    constants = {"ADD": 0, "ACT": 0, "NORM": 1, "DTYPE": 1}
    for spec, block, rows in itertools.product(kernels(architecture), (0, 128), (1, 8, 512)):
        semantic = {**constants, "BLOCK": block, "ABLOCK": block}
        if not spec.name.startswith(("matmul", "norm_matmul")) or (block and "BLOCK" not in spec.constants):
            continue
        own = {name: semantic[name] for name in spec.constants}
        if "BLOCK" in own and own["BLOCK"] not in spec.constants["BLOCK"]:
            continue
        try:
            _, *others = tuning.candidate_tunings(spec, own, {**SHAPE, "rows": rows}, **gpu)
        except UnsupportedError:
            continue
        found |= {compile.source(spec, own, one): (spec, own, one) for one in others}
    return found


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90a"])
def test_bitnet_tune_has_a_choice(architecture: str) -> None:
    offered = {spec.name for spec, _, _ in tilings_on_offer(architecture).values()}
    fused = {"norm_matmul", "norm_matmul_glu"} if architecture != "sm_75" else set()
    assert offered == {"matmul_ternary", "matmul_ternary_block", "matmul_dense"} | fused


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90a"])
def test_tilings_on_offer_do_not_spill(architecture: str) -> None:
    """But for one that is selected for other sizes, where 8 bytes of a thread spill."""
    for text, (spec, _, tuned) in tilings_on_offer(architecture).items():
        if tuned == tensor_tiles.WIDE[192, 128]:
            continue
        log = ptxas_log(text, architecture, b"--ptxas-options=-v")
        assert b" 0 bytes spill stores" in log, f"{spec.name} {tuned} for {architecture}"


def test_hopper_takes_every_source_but_those_for_others() -> None:
    taken = {(spec.name, tuned.variant) for spec, _, tuned in kernel_variants("sm_90a", kernels("sm_90a"))}
    files = {f"{name}_{variant}.cu" if variant else f"{name}.cu" for name, variant in taken}
    unused = {path.name for folder in compile.FOLDERS for path in folder.glob("*.cu")} - files
    dot4 = {f"matmul_ternary{kind}.cu" for kind in ("", "_tile", "_block", "_block_tile")}
    other = {"matmul_ternary_mma.cu", "matmul_ternary_batch.cu", "matmul_dense_mma.cu"}
    other |= {"matmul_ternary_glu_block_group.cu"}
    assert unused == dot4 | other, "for 7.5 alone, and for other GPUs or other sizes"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tiles", "size"),
    [(tiles, size) for tiles in ("WIDE", "STREAM", "BLOCK_STREAM") for size in getattr(tensor_tiles, tiles)],
)
def test_warpgroup_products_of_prompts_do_not_wait_for_each_other(tiles: str, size: tuple[int, int]) -> None:
    """Check for the message of ptxas about serialized products, caused by accesses to their sums while they run."""
    block = 128 * (tiles != "STREAM")
    act_group = 32 if tiles == "BLOCK_STREAM" else block
    product = CATALOGUE["matmul_ternary_block" if block else "matmul_ternary"]
    launches = [(product, {"ADD": add}) for add in (0, 1)]
    if size == (256, 128):
        launches.append((CATALOGUE["matmul_ternary_glu"], {"ACT": 1}))
    for spec, constants in launches:
        scales = {"BLOCK": block, "ABLOCK": act_group}
        assert b"(C75" not in ptxas_log(compile.source(spec, constants | scales, getattr(tensor_tiles, tiles)[size]))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [9, 16, 32, 64])
@pytest.mark.parametrize(
    ("kernel", "outs", "constants"),
    [
        ("matmul_ternary_glu", 12288, {"ACT": 1}),
        ("matmul_ternary_block", 6144, {"ADD": 0}),
        ("matmul_ternary_block", 4096, {"ADD": 1}),
        ("matmul_ternary_block", 151936, {"ADD": 0}),
    ],
)
def test_warpgroup_products_of_batches_with_block_scales_do_not_wait(
    kernel: str, outs: int, constants: dict[str, int], rows: int
) -> None:
    shape = {"rows": rows, "outs": outs, "width": 4096}
    for act_group in (32, 128):
        semantic = constants | {"BLOCK": 128, "ABLOCK": act_group}
        tuned = tuning.select_tuning(CATALOGUE[kernel], semantic, shape, tensor_cores=True, wgmma=True)
        assert tuned.variant in ("group", "block_group")
        assert b"(C75" not in ptxas_log(compile.source(CATALOGUE[kernel], semantic, tuned))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outs", "width", "add"),
    [(6144, 4096, 0), (4096, 4096, 1), (4096, 12288, 1), (8192, 5120, 0), (10240, 5120, 0), (5120, 6144, 1)],
)
def test_products_of_few_rows_with_block_scales_keep_their_weights_in_registers(
    outs: int, width: int, add: int
) -> None:
    """Check the products of Bonsai 8B and 27B; only those behind attention and the GLU add to their output."""
    semantic = {"ADD": add, "BLOCK": 128, "ABLOCK": 32}
    spec, shape = CATALOGUE["matmul_ternary_block"], {"rows": 8, "outs": outs, "width": width}
    tuned = tuning.select_tuning(spec, semantic, shape, tensor_cores=True, wgmma=True)
    assert tuned.variant == "rows"
    log = ptxas_log(compile.source(spec, semantic, tuned), "sm_90a", b"--ptxas-options=-v")
    spilled = [int(count) for count in re.findall(rb"(\d+) bytes spill stores", log)]
    assert max(spilled) <= 8, "of a thread"


def ptxas_log(text: str, architecture: str = "sm_90a", *further: bytes) -> bytes:
    """Return the compiler's log of a translation unit. further: options."""
    nvrtc, options = compile.nvrtc(), [*compile.options(architecture), *further]
    program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, None, None)[1]
    assert int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) == 0
    log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    return bytes(log)


def test_a_broken_source_gives_the_log() -> None:
    with pytest.raises(KernelCompileError, match="does not compile for sm_90") as caught:
        compile.compile_cubin("broken", "__global__ void broken() { undeclared = 1; }", "sm_90")
    assert "undeclared" in caught.value.log
    assert caught.value.kernel == "broken"


def test_the_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def compile_(name: str, source: str, architecture: str) -> bytes:
        calls.append(name)
        return b"cubin of " + source.encode()

    monkeypatch.setattr(compile, "compile_cubin", compile_)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *_, **__: str(tmp_path))
    assert compile.cached_cubin("k", "a", "sm_90") == compile.cached_cubin("k", "a", "sm_90")
    assert len(calls) == 1
    compile.cached_cubin("k", "a", "sm_80")
    compile.cached_cubin("k", "b", "sm_90")
    assert len(calls) == 3


@pytest.mark.parametrize("rows", [9, 16, 17, 32, 33, 64, 65, 512, 1024])
@pytest.mark.parametrize("outs", [64, 640, 3840, 13824, 128256])
@pytest.mark.parametrize("width", [128, 2560, 6912, 28672])
def test_tiles_fit_the_shared_memory_of_their_gpus(rows: int, outs: int, width: int) -> None:
    params = {**SHAPE, "rows": rows, "outs": outs, "width": width}
    scales = {"ADD": 0, "BLOCK": 128, "ABLOCK": 32}
    for spec, constants in (
        (MATMUL_TERNARY, {"ADD": 0}),
        (MATMUL_TERNARY_BLOCK, scales),
        (MATMUL_DENSE, {"DTYPE": 1}),
        (ATTENTION, {"KV": 1}),
    ):
        tile = tuning.select_tuning(spec, constants, params, tensor_cores=True, wgmma=False).private
        assert tile.get("SHARED", 0) <= 98 << 10  # 99 KiB on compute capability 8.6, 8.9 and 12.0
        assert 32 <= tile["GROUP"] <= 1024
        assert tile["GROUP"] % 32 == 0
        hopper = tuning.select_tuning(spec, constants, params, tensor_cores=True, wgmma=True).private
        assert hopper.get("SHARED", 0) * hopper.get("RESIDENT", 1) <= 226 << 10


def test_steps_of_other_sizes_take_other_kernels() -> None:
    def variant(spec: KernelSpec, rows: int, tensor_cores: bool, wgmma: bool = False) -> str:
        constants = {"ADD": 0, "BLOCK": 128, "ABLOCK": 32}
        return tuning.select_tuning(
            spec, constants, {"rows": rows, **SHAPE}, tensor_cores=tensor_cores, wgmma=wgmma
        ).variant

    rows = (1, 2, 32, 64, 512)
    assert [variant(MATMUL_TERNARY, n, tensor_cores=True) for n in rows] == ["few", "few", "batch", "batch", "mma"]
    assert [variant(MATMUL_TERNARY_BLOCK, n, tensor_cores=True) for n in rows] == ["row", "few", "mma", "mma", "mma"]
    for spec in (MATMUL_TERNARY, MATMUL_TERNARY_BLOCK):
        assert variant(spec, 512, tensor_cores=True, wgmma=True) == "stream"
        apart = {"rows": 512, **SHAPE, "y_first": 2}  # a lane's rows would not lie in whole words of y
        constants = {"ADD": 0, "BLOCK": 128, "ABLOCK": 32}
        assert tuning.select_tuning(spec, constants, apart, tensor_cores=True, wgmma=True).variant == "mma"
    assert [variant(MATMUL_TERNARY, n, tensor_cores=False) for n in (1, 512)] == ["", "tile"]

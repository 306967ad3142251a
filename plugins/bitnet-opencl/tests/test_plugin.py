"""What is OpenCL's own: transfer modes, status codes, sources, cached binaries, recordings."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bitnet_core.errors import (
    BackendUnavailableError,
    DeviceLostError,
    DeviceNotFoundError,
    GpuError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
)
from bitnet_core.hal.device import DeviceType, TransferMode, View, whole
from bitnet_core.kernels.catalogue import CATALOGUE
from bitnet_opencl import discovery
from bitnet_opencl.compiler import BinaryCache, Compiler
from bitnet_opencl.device import OpenCLDevice
from bitnet_opencl.errors import TABLE, Status, check
from bitnet_opencl.layer import SPEC as LAYER_SPEC
from bitnet_opencl.memory import (
    STAGING_BYTES,
    DirectPath,
    StagedPath,
    SvmCapabilities,
    UsmSupport,
    detect_usm_capabilities,
)
from bitnet_opencl.plugin import OpenCLBackend
from bitnet_opencl.sources import (
    EXTRA_ARGUMENTS,
    KernelValidationError,
    SourceProblem,
    kernel_source,
    validate_kernel_source,
    with_one_struct,
)
from bitnet_opencl.tuning import VARIANTS


def test_import_loads_no_driver() -> None:
    code = "import sys, bitnet_opencl.plugin as p; p.bitnet_backend(); assert 'pyopencl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("raw", "support", "mode"),
    [
        (4 | 2 | 1, UsmSupport.FINE_GRAIN_SYSTEM, TransferMode.UNIFIED),
        (2 | 1, UsmSupport.FINE_GRAIN_BUFFER, TransferMode.UNIFIED),
        (1, UsmSupport.COARSE_GRAIN_BUFFER, TransferMode.EXPLICIT_COPY),
        (0, UsmSupport.NONE, TransferMode.EXPLICIT_COPY),
    ],
)
def test_transfer_mode_table(raw: int, support: UsmSupport, mode: TransferMode) -> None:
    assert detect_usm_capabilities(raw) is support
    assert support.transfer is mode
    assert detect_usm_capabilities(raw | SvmCapabilities.ATOMICS) is support


def test_every_status_becomes_an_exception() -> None:
    check(0, "nothing")
    for status in Status:
        expected = TABLE.get(status, (LaunchError, ""))[0]
        with pytest.raises(expected, match=f"CL_{status.name} \\({status.value}\\)"):
            check(status, "test")
    with pytest.raises(GpuError, match="CL status -12345"):
        check(-12345, "test")
    with pytest.raises(OutOfMemoryError) as caught:
        check(Status.OUT_OF_RESOURCES, "alloc", requested=7)
    assert caught.value.requested == 7


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("void helper(int a) {} // __kernel void gone(int a)", SourceProblem.NO_KERNELS_FOUND),
        ("__kernel void a() {}", SourceProblem.EMPTY_ARG_LIST),
        ("__kernel void a(IN(float, x), const uint n, const uint m) {}", SourceProblem.ARG_COUNT_MISMATCH),
        ("__kernel void a(int x, int y) {} kernel void a(int x, int y) {}", SourceProblem.DUPLICATE_KERNEL_NAME),
    ],
)
def test_bad_sources_are_refused(source: str, problem: SourceProblem) -> None:
    with pytest.raises(KernelValidationError) as caught:
        validate_kernel_source(source, 2)
    assert caught.value.problem is problem


def test_shipped_sources_have_the_form_of_the_catalogue() -> None:
    folder = Path(discovery.__file__).parent / "kernels"
    stems = {path.stem for path in folder.glob("*.cl")} - {"prelude"}
    expected = {}
    for spec in (*CATALOGUE.values(), LAYER_SPEC):
        for variant in VARIANTS:
            entry = spec.name + variant
            expected[entry] = len(spec.bindings) + len(spec.params) + EXTRA_ARGUMENTS.get(entry, 0)
    assert stems <= set(expected)
    assert {name for name, spec in CATALOGUE.items() if spec.base} <= stems
    for stem in stems:
        assert validate_kernel_source(kernel_source(stem), expected[stem]) == [stem]


def test_offsets_and_parameters_become_one_struct() -> None:
    listed = "IN(float, x), OUT(int, y),\n const uint rows, const float eps, __global uint *p"
    source = f"\n__kernel void k({listed}) {{ *y = 1; }}"
    validate_kernel_source(source, 5)
    packed = " ".join(with_one_struct(source).split())
    assert "typedef struct { ulong x_offset; ulong y_offset; uint rows; float eps; } launch_arguments;" in packed
    buffers = "__global const float *x_buffer, __global int *y_buffer"
    arguments = f"{buffers}, const launch_arguments launch, __global uint *p"
    assert f"__kernel void k({arguments}) {{ const ulong x_offset = launch.x_offset;" in packed
    assert packed.endswith("const float eps = launch.eps; *y = 1; }")
    with pytest.raises(KernelValidationError):
        with_one_struct("void helper(int a) {}")


def test_no_driver_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    cl = pytest.importorskip("pyopencl")

    def none() -> list[object]:
        raise cl.LogicError("no platforms", -1001)

    monkeypatch.setattr(cl, "get_platforms", none)
    with pytest.raises(BackendUnavailableError) as caught:
        OpenCLBackend().devices()
    assert "\n" not in str(caught.value)
    assert "bitnet-opencl[pocl]" in str(caught.value)


def test_no_pyopencl_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(BackendUnavailableError, match="pip install pyopencl"):
        OpenCLBackend().devices()


def test_unknown_index(opencl_device: OpenCLDevice) -> None:
    with pytest.raises(DeviceNotFoundError, match="opencl:99"):
        OpenCLBackend().open(99)


def test_cpu_devices_are_software(opencl_device: OpenCLDevice) -> None:
    import pyopencl as cl

    if opencl_device._device.type & cl.device_type.CPU:
        assert opencl_device.info.type is DeviceType.SOFTWARE


def options_of(device: OpenCLDevice) -> list[str]:
    return [*device._abilities, "-DWG=8"]


@pytest.mark.usefixtures("keeping")
def test_binaries_are_cached_and_damaged_ones_rebuilt(opencl_device: OpenCLDevice, tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path)
    compiler = Compiler(opencl_device._context, opencl_device._device, cache)
    source = "__kernel void one(__global int *out) { out[0] = 1; }"
    compiler.build("one", source, options_of(opencl_device))
    (path,) = tmp_path.glob("*.bin")
    good = path.read_bytes()
    assert cache.load(path.stem)
    for damaged in (b"", good[:40], good[:-1], good[:-1] + bytes([good[-1] ^ 1])):
        path.write_bytes(damaged)
        assert cache.load(path.stem) is None
    program = compiler.build("one", source, options_of(opencl_device))
    assert path.read_bytes()[:16] == good[:16]
    assert cache.load(path.stem)
    assert program.kernel_names == "one"
    cache.store(path.stem, b"whole, but no program of this driver")
    assert compiler.build("one", source, options_of(opencl_device)).kernel_names == "one"
    assert not list(tmp_path.glob("*.part"))
    compiler.build("one", source, [*options_of(opencl_device), "-DOTHER=1"])
    assert len(list(tmp_path.glob("*.bin"))) == 2


@pytest.mark.usefixtures("keeping")
def test_a_program_from_the_cache_computes(
    opencl_device: OpenCLDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second device of the same kind builds nothing, and gets the same sums."""

    def refuse(*args: object) -> None:
        raise AssertionError("built from its source")

    monkeypatch.setattr("platformdirs.user_cache_dir", lambda *args, **kwargs: str(tmp_path))
    spec, params = CATALOGUE["rms_norm"], {"rows": 1, "width": 64, "eps": 0.0}
    results = []
    for _ in range(2):
        device = OpenCLDevice(opencl_device._device, opencl_device.info)
        constants = device.tuning(spec, {}, params)
        kernel = device.compile(spec, constants)
        x, index, gamma, y = (device.alloc(nbytes) for nbytes in (256, 4, 256, 256))
        for buffer in (x, gamma):
            device.upload(whole(buffer), memoryview(np.arange(64, dtype=np.float32)).cast("B"))
        views = [whole(buffer) for buffer in (x, index, gamma, y)]
        device.launch(kernel, spec.grid(params, constants), views, spec.pack(params))
        results.append(np.empty(64, np.float32))
        device.download(whole(y), memoryview(results[-1]).cast("B"))
        device.close()
        monkeypatch.setattr(Compiler, "_keep", refuse)  # which follows a build from source
    np.testing.assert_array_equal(results[0], results[1])
    assert results[0].any()
    assert len(list(tmp_path.rglob("*.bin"))) == 1


def test_build_failures_carry_the_log(opencl_device: OpenCLDevice, tmp_path: Path) -> None:
    compiler = Compiler(opencl_device._context, opencl_device._device, BinaryCache(tmp_path))
    with pytest.raises(KernelCompileError) as caught:
        compiler.build("broken", "__kernel void broken(__global int *o) { o[0] = nowhere; }", [])
    assert caught.value.kernel == "broken"
    assert "nowhere" in caught.value.log


@pytest.mark.parametrize("kind", [DirectPath, StagedPath])
@pytest.mark.parametrize("nbytes", [1, 70_000, 2 * STAGING_BYTES + 5])
def test_both_data_paths_carry_bytes(opencl_device: OpenCLDevice, kind: type[DirectPath], nbytes: int) -> None:
    device = opencl_device
    path = StagedPath(device._queue, device._context) if issubclass(kind, StagedPath) else DirectPath(device._queue)
    data = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
    buffer = device.alloc(nbytes + 32)
    path.upload(device._handle(buffer), 16, memoryview(data))
    found = np.empty(buffer.nbytes, np.uint8)
    device.download(whole(buffer), memoryview(found))
    np.testing.assert_array_equal(found[16:-16], data)
    assert not found[:16].any()
    assert not found[-16:].any()
    path.close()
    device.free(buffer)


@pytest.mark.parametrize("direct", [True, False])
def test_replay_creates_nothing(opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch, direct: bool) -> None:
    """After the recording, no cl_kernel, buffer or program is made, and each replay runs again; also where the driver's
    function cannot be found."""
    import pyopencl as cl

    device, spec = opencl_device, CATALOGUE["embed_rows"]
    if not direct:
        monkeypatch.setattr(device._enqueuer, "_function", None)
    params = {"rows": 1, "hidden": 64, "first": 0, "count": 4}
    constants = {"DTYPE": 0, **device.tuning(spec, {"DTYPE": 0}, params)}
    table = device.alloc(4 * 64 * 4)
    step, x = device.alloc(16), device.alloc(256)
    device.upload(whole(table), memoryview(np.arange(256, dtype=np.float32)).cast("B"))
    with device.record() as recording:
        kernel = device.compile(spec, constants)
        device.launch(kernel, spec.grid(params, constants), [whole(table), whole(step), whole(x)], spec.pack(params))

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("something was created")

    for name in ("Kernel", "Buffer", "Program"):
        monkeypatch.setattr(cl, name, refuse)
    for token in (3, 1):
        device.upload(View(step, 0, 16), memoryview(np.array([token, 0, 0, 0], np.int32)).cast("B"))
        device.replay(recording)
        found = np.empty(64, np.float32)
        device.download(whole(x), memoryview(found).cast("B"))
        np.testing.assert_array_equal(found, np.arange(64 * token, 64 * token + 64))
    ((name, seconds),) = device.timings(recording)
    assert name == "embed_rows"
    assert 0 < seconds < 10
    recording.close()
    for buffer in (table, step, x):
        device.free(buffer)


def test_a_replay_that_the_driver_refuses_is_an_error(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, spec, params = opencl_device, CATALOGUE["rms_norm"], {"rows": 1, "width": 4, "eps": 0.0}
    constants = device.tuning(spec, {}, params)
    buffer = device.alloc(64)
    with device.record() as recording:
        kernel = device.compile(spec, constants)
        device.launch(kernel, spec.grid(params, constants), [whole(buffer)] * 4, spec.pack(params))
    refused = replace(recording.launches[0], enqueue=lambda: Status.INVALID_KERNEL_ARGS.value)
    recording.launches[0] = refused
    with pytest.raises(LaunchError, match="CL_INVALID_KERNEL_ARGS"):
        device.replay(recording)
    recording.close()
    device.free(buffer)


def test_a_lost_device_stays_lost(opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl as cl

    device = OpenCLDevice(opencl_device._device, opencl_device.info)

    class GoneQueue:
        def finish(self) -> None:
            raise cl.LogicError(cl._cl._ErrorRecord("clFinish", Status.DEVICE_NOT_AVAILABLE.value, ""))

    monkeypatch.setattr(device, "_queue", GoneQueue())
    with pytest.raises(DeviceLostError, match="CL_DEVICE_NOT_AVAILABLE"):
        device.synchronize()
    with pytest.raises(DeviceLostError):
        device.alloc(16)
    device.close()

"""OpenCL alone: transfer modes, PCI addresses, status codes, sources, cached binaries, recordings, waits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from bitnet_hal.device import DeviceType, TransferMode, Tuning, View, whole
from bitnet_hal.driver.enumerate import EnumeratedDevice
from bitnet_hal.driver.program_cache import ProgramCache
from bitnet_hal.errors import (
    BackendUnavailableError,
    DeviceLostError,
    DeviceNotFoundError,
    GpuTimeoutError,
    KernelCompileError,
    LaunchError,
    OutOfMemoryError,
)
from bitnet_hal.families.opencl_c import program_source
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.launcher import Launch, Launcher
from bitnet_opencl import clc, recording
from bitnet_opencl.compile import Compiler
from bitnet_opencl.describe import KNOWN, physical_id, transfer_mode, usm_support
from bitnet_opencl.device import OpenCLDevice
from bitnet_opencl.errors import STATUSES, check
from bitnet_opencl.memory import SLOT
from bitnet_opencl.plugin import bitnet_backend


def test_import_loads_no_driver() -> None:
    code = "import sys, bitnet_opencl.plugin as p; p.bitnet_backend(); assert 'pyopencl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sources_and_tuning_need_no_binding() -> None:
    code = "import sys, bitnet_opencl.clc.tuning; assert 'pyopencl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("raw", "support", "mode"),
    [
        (4 | 2 | 1, "fine-grain system", TransferMode.UNIFIED),
        (8 | 2 | 1, "fine-grain buffer", TransferMode.UNIFIED),
        (1, "coarse-grain buffer", TransferMode.EXPLICIT_COPY),
        (8, "none", TransferMode.EXPLICIT_COPY),
        (0, "none", TransferMode.EXPLICIT_COPY),
    ],
)
def test_transfer_mode_table(raw: int, support: str, mode: TransferMode) -> None:
    assert usm_support(raw) == support
    assert transfer_mode(raw, unified=True) is mode
    assert transfer_mode(raw, unified=False) is TransferMode.EXPLICIT_COPY


def test_one_card_has_one_address() -> None:
    """The card 0000:00:06.0 of CUDA and Vulkan is bus 0, slot 6 in NVIDIA's OpenCL; AMD's reports device and
    function."""
    extensions = "cl_khr_fp64 cl_nv_device_attribute_query"
    nvidia = SimpleNamespace(pci_domain_id_nv=0, pci_bus_id_nv=0, pci_slot_id_nv=6, extensions=extensions)
    assert physical_id(nvidia) == "0000:00:06.0"
    second = SimpleNamespace(pci_domain_id_nv=1, pci_bus_id_nv=0x1A, pci_slot_id_nv=0, extensions=extensions)
    assert physical_id(second) == "0001:1a:00.0"
    amd = SimpleNamespace(topology_amd=SimpleNamespace(bus=-125, device=0, function=0), extensions="")
    assert physical_id(amd) == "0000:83:00.0"
    assert physical_id(SimpleNamespace(extensions="")) == ""


def test_every_status_becomes_an_exception() -> None:
    check(0, "nothing")
    for status, row in STATUSES.table.items():
        with pytest.raises(row.kind or LaunchError) as caught:
            check(status, "test")
        assert caught.value.code.endswith(f"({status})")
    with pytest.raises(LaunchError, match="CL status -12345"):
        check(-12345, "test")
    assert STATUSES.error(-36, "test").code == "CL_INVALID_COMMAND_QUEUE (-36)"
    assert STATUSES.error(-1001, "test").code == "CL_PLATFORM_NOT_FOUND_KHR (-1001)"
    with pytest.raises(OutOfMemoryError) as out:
        check(-5, "alloc", requested=7)
    assert out.value.requested == 7
    assert out.value.code == "CL_OUT_OF_RESOURCES (-5)"


def test_statuses_have_the_names_of_the_binding() -> None:
    cl = pytest.importorskip("pyopencl")
    named = {value: name for name, value in vars(cl.status_code).items() if isinstance(value, int) and value < 0}
    names = {status: row.name for status, row in STATUSES.table.items()}
    assert {status: names.get(status, name) for status, name in named.items()} == named


def test_every_source_has_a_kernel_of_the_catalogue() -> None:
    """A kernel is named like its file and has the arguments of the catalogue."""
    folder = Path(str(clc.__file__)).parent
    names = sorted(CATALOGUE, key=len, reverse=True)
    seen = set()
    for path in (*folder.glob("kernels/*.cl"), *folder.glob("nvidia/*.cl")):
        name = next(name for name in names if path.stem == name or path.stem.startswith(f"{name}_"))
        variant = path.stem[len(name) + 1 :]
        source = program_source(clc.NVIDIA, CATALOGUE[name], {}, Tuning(variant=variant, workspace=16))
        assert source.count(f"KERNEL {path.stem}(ARGUMENTS) {{") == source.count("KERNEL ") - 1 == 1, path
        for binding in (*CATALOGUE[name].bindings, SimpleNamespace(name="workspace")):
            assert f"uchar *{binding.name}_buffer" in source
        seen.add(name)
    assert seen == {name for name, spec in CATALOGUE.items() if spec.base or name in KNOWN["kernels"]}


def test_arguments_are_buffers_and_one_struct() -> None:
    lines = program_source(clc.PORTABLE, CATALOGUE["rms_norm"], {}, Tuning(private={"GROUP": 8})).splitlines()
    fields = "ulong x_offset; ulong index_offset; ulong gamma_offset; ulong y_offset; uint rows; uint width; float eps;"
    assert lines[0] == f"typedef struct {{ {fields} }} launch_arguments;"
    assert lines[1].endswith("__global uchar *y_buffer, const launch_arguments launch")
    assert "const float eps = launch.eps;" in lines[2]
    assert lines[3] == "#define GROUP 8"


def test_no_driver_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    cl = pytest.importorskip("pyopencl")

    def none() -> list[object]:
        raise cl.LogicError("no platforms", -1001)

    monkeypatch.setattr(cl, "get_platforms", none)
    with pytest.raises(BackendUnavailableError) as caught:
        bitnet_backend().devices()
    assert "\n" not in str(caught.value)
    assert "bitnet-opencl[pocl]" in str(caught.value)


def test_no_pyopencl_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(BackendUnavailableError, match="pip install pyopencl"):
        bitnet_backend().devices()


def test_unknown_index(opencl_device: OpenCLDevice) -> None:
    with pytest.raises(DeviceNotFoundError, match="opencl:99"):
        bitnet_backend().open(99)


def test_cpu_devices_are_software(opencl_device: OpenCLDevice) -> None:
    import pyopencl as cl

    if opencl_device._device.type & cl.device_type.CPU:
        assert opencl_device.info.type is DeviceType.SOFTWARE


def options_of(device: OpenCLDevice) -> list[str]:
    return [*device._abilities, "-DGROUP=8"]


@pytest.mark.usefixtures("keeping")
def test_binaries_are_cached_and_damaged_ones_rebuilt(opencl_device: OpenCLDevice, tmp_path: Path) -> None:
    cache = ProgramCache("opencl", tmp_path)
    compiler = Compiler(opencl_device._context, opencl_device._device, cache)
    source = "__kernel void one(__global int *out) { out[0] = 1; }"
    compiler.build("one", source, options_of(opencl_device))
    (path,) = tmp_path.glob("*.bin")
    cache.store(path.stem, b"whole, but no program of this driver")
    assert compiler.build("one", source, options_of(opencl_device)).kernel_names == "one"
    assert cache.load(path.stem) != b"whole, but no program of this driver"
    compiler.build("one", source, [*options_of(opencl_device), "-DOTHER=1"])
    assert len(list(tmp_path.glob("*.bin"))) == 2


def test_a_compiler_s_warnings_do_not_reach_the_user(
    opencl_device: OpenCLDevice, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compiler = Compiler(opencl_device._context, opencl_device._device, ProgramCache("opencl", tmp_path))
    divided = f"out[0] = {tmp_path.stat().st_ino} / 0;"  # a source that no cache of a driver has
    compiler.build("one", f"__kernel void one(__global int *out) {{ {divided} }}", options_of(opencl_device))
    assert capfd.readouterr() == ("", "")


def launch_of(device: OpenCLDevice, spec: KernelSpec, params: dict[str, int | float], sizes: Sequence[int]) -> Launch:
    """A launch on fresh buffers of so many bytes."""
    constants = {name: values[0] for name, values in spec.constants.items()}
    return Launcher(device).prepare(spec, params, [whole(device.alloc(nbytes)) for nbytes in sizes], constants)


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
        device = OpenCLDevice(EnumeratedDevice(opencl_device._device, opencl_device.info))
        launch = launch_of(device, spec, params, (256, 4, 256, 256))
        for view in (launch.views[0], launch.views[2]):
            device.upload(view, memoryview(np.arange(64, dtype=np.float32)).cast("B"))
        Launcher(device).run([launch])
        results.append(np.empty(64, np.float32))
        device.download(launch.views[3], memoryview(results[-1]).cast("B"))
        device.close()
        monkeypatch.setattr(Compiler, "_binary", refuse)  # which follows a build from source
    np.testing.assert_array_equal(results[0], results[1])
    assert results[0].any()
    assert len(list(tmp_path.rglob("*.bin"))) == 1


def test_build_failures_carry_the_log(opencl_device: OpenCLDevice) -> None:
    with pytest.raises(KernelCompileError) as caught:
        opencl_device._compiler.build("broken", "__kernel void broken(__global int *o) { o[0] = nowhere; }", [])
    assert caught.value.kernel == "broken"
    assert "nowhere" in caught.value.log


@pytest.mark.parametrize("nbytes", [1, 70_000, 3 * SLOT + 5])
def test_slots_carry_bytes(opencl_device: OpenCLDevice, nbytes: int) -> None:
    device = opencl_device
    data = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
    buffer = device.alloc(nbytes + 32)
    device.upload(View(buffer, 16, nbytes), memoryview(data))
    found = np.empty(buffer.nbytes, np.uint8)
    device.download(whole(buffer), memoryview(found))
    np.testing.assert_array_equal(found[16:-16], data)
    assert not found[:16].any()
    assert not found[-16:].any()
    device.free(buffer)


@pytest.mark.parametrize("direct", [True, False])
def test_replay_creates_nothing(opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch, direct: bool) -> None:
    """After the recording, a replay creates no cl_kernel, buffer or program, even if the driver's function cannot be
    found."""
    import pyopencl as cl

    device, spec = opencl_device, CATALOGUE["embed_rows"]
    if not direct:
        monkeypatch.setattr(recording, "_driver", lambda: None)
    launch = launch_of(device, spec, {"rows": 1, "hidden": 64, "first": 0, "count": 4}, (1024, 16, 256))
    table, step, x = launch.views
    device.upload(table, memoryview(np.arange(256, dtype=np.float32)).cast("B"))
    recorded = Launcher(device).record([launch])

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("something was created")

    for name in ("Kernel", "Buffer", "Program"):
        monkeypatch.setattr(cl, name, refuse)
    for token in (3, 1):
        device.upload(View(step.buffer, 0, 16), memoryview(np.array([token, 0, 0, 0], np.int32)).cast("B"))
        device.replay(recorded.recording)
        found = np.empty(64, np.float32)
        device.download(x, memoryview(found).cast("B"))
        np.testing.assert_array_equal(found, np.arange(64 * token, 64 * token + 64))
    ((name, seconds),) = device.timings(recorded.recording)
    assert name == "embed_rows"
    assert 0 < seconds < 10
    recorded.recording.close()


def test_a_replay_that_the_driver_refuses_is_an_error(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = opencl_device
    monkeypatch.setattr(recording, "_driver", lambda: lambda *arguments: -52)
    launch = launch_of(device, CATALOGUE["rms_norm"], {"rows": 1, "width": 4, "eps": 0.0}, (16, 4, 16, 16))
    recorded = Launcher(device).record([launch])
    with pytest.raises(LaunchError, match="CL_INVALID_KERNEL_ARGS"):
        device.replay(recorded.recording)
    recorded.recording.close()


def test_waits_are_bounded(opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for an event that is never reached; waits for a CPU are bounded only if the user set a limit."""
    monkeypatch.setenv("BITNET_GPU_TIMEOUT", "0.05")
    device = OpenCLDevice(EnumeratedDevice(opencl_device._device, opencl_device.info))
    assert not device._patient
    with pytest.raises(GpuTimeoutError, match=r"0\.05 s"):
        device._reach(SimpleNamespace(command_execution_status=1))
    monkeypatch.delenv("BITNET_GPU_TIMEOUT")
    if opencl_device.info.type is DeviceType.SOFTWARE:
        assert OpenCLDevice(EnumeratedDevice(opencl_device._device, opencl_device.info))._patient
    device.close()


def test_a_lost_device_stays_lost(opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    device = OpenCLDevice(EnumeratedDevice(opencl_device._device, opencl_device.info))
    monkeypatch.setattr(device, "_patient", False)
    monkeypatch.setattr("pyopencl.enqueue_marker", lambda queue: SimpleNamespace(command_execution_status=-2))
    with pytest.raises(DeviceLostError, match="CL_DEVICE_NOT_AVAILABLE"):
        device.synchronize()
    with pytest.raises(DeviceLostError):
        device.alloc(16)
    device.close()

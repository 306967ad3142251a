"""Checks of devices, plugins and settings, for `bitnet doctor`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Device, DeviceInfo, DeviceType, whole
from bitnet_hal.discovery.fake import fake_gpus
from bitnet_hal.discovery.known import PCI_VENDORS, REPORT, backends_here, install_hint
from bitnet_hal.discovery.quarantine import Stage
from bitnet_hal.discovery.registry import registry
from bitnet_hal.discovery.selection import devices, open_listed
from bitnet_hal.errors import GpuError
from bitnet_hal.isolation import describe_error
from bitnet_hal.kernels.base import MATMUL_TERNARY
from bitnet_hal.launcher import Launcher
from bitnet_hal.testing.compiles import failing_kernels, kernels_of

from bitnet_core.doctor.access import access_findings
from bitnet_core.doctor.hardware import nothing_to_do, pci_gpus
from bitnet_core.doctor.versions import version_findings
from bitnet_core.logs import log_hint
from bitnet_core.model.source import Finding
from bitnet_core.units import count


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """The result of checking that a device compiles all its kernels and computes a small ternary matmul as numpy does.

    reason, fix: "" if the check passed.
    """

    info: DeviceInfo
    passed: bool
    seconds: float  # to open, compile, run and close
    reason: str = ""
    fix: str = ""


def check_device(info: DeviceInfo) -> DeviceCheck:
    """Compile every kernel that a device offers, run one, and compare its result with numpy's."""
    start = time.perf_counter()
    try:
        device = open_listed(info)
        try:
            reason = _failing(device) or _wrong_answer(device)
        finally:
            device.close()
    except GpuError as error:
        reason, fix = str(error), error.hint or "See the driver's own diagnostics"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a plugin may fail in any way, and the other devices are checked too
        reason, fix = describe_error(error), f"Report it to the authors of the '{info.backend}' backend {REPORT}"
    else:
        advice = f"Do not use this device; report it to the authors of the '{info.backend}' backend {REPORT}"
        fix = advice if reason else ""
    return DeviceCheck(info, not reason, time.perf_counter() - start, reason, fix)


def preflight() -> list[Finding]:
    """Return the findings about the machine: warnings are faults, infos are possible improvements."""
    present = devices()
    checks = [check_device(info) for info in present]
    machine = access_findings() + version_findings()
    return device_findings(checks) + plugin_findings() + setting_findings(present) + machine


def device_findings(checks: Sequence[DeviceCheck]) -> list[Finding]:
    """Return one warning per device that failed its check."""
    return [
        Finding("warning", "device-failed", f"{check.info.request}: {check.reason}. {check.fix}")
        for check in checks
        if not check.passed
    ]


def plugin_findings() -> list[Finding]:
    """Return one finding per plugin in quarantine.

    A missing driver is not a fault of the plugin, and is not reported if its hardware is absent.
    """
    return [
        Finding(
            "info" if entry.stage is Stage.DRIVER else "warning",
            "driver-absent" if entry.stage is Stage.DRIVER else "plugin-quarantined",
            f"{entry.name} ({entry.distribution} {entry.version}): {entry.reason}. {entry.fix}",
        )
        for entry in registry().quarantined
        if not (entry.stage is Stage.DRIVER and nothing_to_do(entry.name))
    ]


def setting_findings(present: Sequence[DeviceInfo], pci: Path = Path("/sys/bus/pci/devices")) -> list[Finding]:
    """Return findings about enabled fake devices, and about hardware that no installed backend serves."""
    findings = []
    installed = registry().backends
    if fake_gpus() is not None:
        findings.append(Finding("warning", "fake-gpus", "BITNET_GPU_FAKE is set: the GPUs shown are not real"))
    elif not any(info.type in (DeviceType.GPU, DeviceType.INTEGRATED) for info in present):
        for vendor in sorted(pci_gpus(pci).intersection(PCI_VENDORS)):
            backends = backends_here(vendor)
            if not any(backend in installed for backend in backends):
                message = f"this machine has {PCI_VENDORS[vendor]} graphics hardware that no installed backend uses: "
                findings.append(Finding("info", "gpu-unused", message + install_hint(*backends)))
    if all(info.backend == "numpy" or info.type is DeviceType.SOFTWARE for info in present):
        message = "without a GPU that bitnet can use, the native CPU backend is the best choice: "
        findings.append(Finding("info", "native-cpu-missing", message + install_hint("cpu")))
    return findings


def _failing(device: Device) -> str:
    """Return the names of kernels that do not compile, and the path of the compiler's log; "" if all compile."""
    failed = failing_kernels(device)
    if not failed:
        return ""
    said = f"{len(failed)} of {len(kernels_of(device.info))} kernels do not compile: {', '.join(failed)}"
    for name, alike in _by_reason(failed).items():
        others = f", and {count(len(alike) - 1, 'kernel')} more" if len(alike) > 1 else ""
        said += f"\n{name}{others}: {failed[name]}{log_hint(failed[name])}"
    return said


def _by_reason(failed: Mapping[str, GpuError]) -> dict[str, list[str]]:
    """Group kernels whose errors differ only in the kernel's name, by the first kernel of each group.

    A broken compiler reports the same error for every kernel.
    """
    groups = dict[str, list[str]]()
    for name, error in failed.items():
        groups.setdefault(str(error).replace(error.kernel or name, ""), []).append(name)
    return {names[0]: names for names in groups.values()}


def _wrong_answer(device: Device) -> str:
    """Compare the device's product with a small random ternary matrix with numpy's; return a description of the
    difference, "" if there is none."""
    rows, outs, width = 3, 37, 256
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 3, (outs, width), dtype=np.uint8)
    groups = codes.reshape(outs, width // 128, 4, 32)
    packed = np.ascontiguousarray(groups[:, :, 0] << 6 | groups[:, :, 1] << 4 | groups[:, :, 2] << 2 | groups[:, :, 3])
    q = rng.integers(-127, 128, (rows, width), dtype=np.int8)
    scale = rng.random(rows, dtype=np.float32) + np.float32(0.5)
    wscale = rng.random(outs, dtype=np.float32) + np.float32(0.5)
    sums = q.astype(np.int32) @ (codes.astype(np.int32) - 1).T
    expected = sums.astype(np.float32) * scale[:, None] * wscale

    found = _run_matmul(device, packed, wscale, q, scale, outs, width)
    if not np.isfinite(found).all():
        return "matmul_ternary returns NaN or Inf"
    wrong = ~np.isclose(found, expected, rtol=1e-6, atol=0)
    if not wrong.any():
        return ""
    row, column = np.argwhere(wrong)[0]
    return (
        f"matmul_ternary is wrong in {int(wrong.sum())} of {wrong.size} places, first at [{row}, {column}]: "
        f"{found[row, column]:g} instead of {expected[row, column]:g}"
    )


def _run_matmul(
    device: Device,
    packed: npt.NDArray[np.uint8],
    wscale: npt.NDArray[np.float32],
    q: npt.NDArray[np.int8],
    scale: npt.NDArray[np.float32],
    outs: int,
    width: int,
) -> npt.NDArray[np.float32]:
    """Launch matmul_ternary once; return y as f32[rows, outs]."""
    rows = len(q)
    y = np.zeros((rows, outs), np.float32)
    views = []
    for array in (packed, wscale, q, scale, q.sum(axis=1, dtype=np.int32), y):
        views.append(whole(device.alloc(array.nbytes)))
        device.upload(views[-1], array.data)
    params = {"rows": rows, "outs": outs, "width": width, "y_stride": outs, "y_first": 0}
    launcher = Launcher(device)
    launcher.run([launcher.prepare(MATMUL_TERNARY, params, views, {"ADD": 0})])
    device.download(views[-1], y.data)
    return y

"""Choosing a device: rank, requests, fallback, and the summary of what happened."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from bitnet_core.errors import DeviceNotFoundError, GpuError, UsageError
from bitnet_core.hal.device import Device, DeviceInfo, DeviceType
from bitnet_core.hal.discovery import registry
from bitnet_core.hal.fake import fake_gpus, fake_info, open_fake
from bitnet_core.hal.request import AUTO, DeviceRequest, parse_request, resolve_request

log = logging.getLogger(__name__)

RANK = {
    "cuda": 100,
    "rocm": 90,
    "level-zero": 80,
    "opencl": 70,
    "vulkan": 60,
    "metal": 50,
    "webgpu": 40,
    "cpu": 20,
    "numpy": 0,
}
"""Order of preference of the known backends."""
PACKAGES = ("cuda", "opencl", "vulkan", "cpu")
"""Those that this project has a package for."""
_OTHER_GPU = 30  # hardware of a backend that core does not know
_SOFTWARE = 10  # a CPU behind a GPU API, or a CPU backend that core does not know: below the native CPU

_HARDWARE = frozenset({DeviceType.GPU, DeviceType.INTEGRATED})


@dataclass(frozen=True, slots=True)
class BackendStartupSummary:
    """What was asked for, what is there, what was taken; `str()` is the line that is logged."""

    requested: DeviceRequest
    detected: tuple[str, ...]  # backends with a device, best first, of those that the request can mean
    selected: DeviceInfo
    skipped: tuple[tuple[DeviceInfo, str], ...] = ()  # better devices that could not be used, and why

    def __str__(self) -> str:
        selected = self.selected.backend if self.selected.index == 0 else self.selected.request
        return f"requested={self.requested} detected=[{','.join(self.detected)}] selected={selected}"

    @property
    def compute_path(self) -> str:
        """ "mock" on a fake device, "fallback" where a better device could not be used, else "real"."""
        if self.selected.fake:
            return "mock"
        return "fallback" if self.skipped else "real"

    def moved_to(self, selected: DeviceInfo, reason: str) -> BackendStartupSummary:
        """The summary after `self.selected` was given up for another device."""
        return replace(self, selected=selected, skipped=(*self.skipped, (self.selected, reason)))


def rank(info: DeviceInfo) -> int:
    """Preference of a device; higher is better."""
    if info.type in _HARDWARE:
        return RANK.get(info.backend, _OTHER_GPU)
    return RANK[info.backend] if info.backend in ("cpu", "numpy") else _SOFTWARE


def ranked(devices: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """Best first; hardware that several backends show counts once, under the best of them."""
    order = sorted(
        devices, key=lambda info: (-rank(info), info.type is DeviceType.INTEGRATED, info.backend, info.index)
    )
    seen: set[str] = set()
    kept = []
    for info in order:
        if info.type in _HARDWARE and info.physical_id:
            if info.physical_id in seen:
                continue
            seen.add(info.physical_id)
        kept.append(info)
    return kept


def devices(only: Collection[str] | None = None) -> list[DeviceInfo]:
    """All devices, or those of some backends, whose drivers alone are loaded. A driver that fails is left out
    (`bitnet doctor` tells why). Under BITNET_GPU_FAKE the GPUs are those it names.
    """
    found = registry()
    fakes = fake_gpus()
    names = [name for name in found.backends if only is None or name in only]
    if fakes is None:
        return [info for name in names for info in found.devices(name)]
    cpus = [name for name in names if RANK.get(name, 0) <= RANK["cpu"]]  # the others would load a GPU's driver
    listed = [info for name in cpus for info in found.devices(name) if info.type is DeviceType.CPU]
    for name in dict.fromkeys(parse_request(text).name for text in fakes):
        if RANK.get(name, 0) <= RANK["cpu"]:
            raise UsageError(f"BITNET_GPU_FAKE: '{name}' is no GPU backend. Use some of {', '.join(_gpu_backends())}")
        if only is None or name in only:
            listed.append(fake_info(name))
    return listed


def gpu_available() -> bool:
    """Whether a hardware GPU is there that some installed backend can use."""
    return any(info.type in _HARDWARE for info in devices())


def open_device(request: str | DeviceRequest | None = None) -> tuple[Device, BackendStartupSummary]:
    """Open the device that a request names.

    None and "auto" are no choice of the caller, so BITNET_DEVICE applies. Only `auto` goes on to the next device
    when one does not open. DeviceNotFoundError, BackendUnavailableError or BackendIncompatibleError if nothing
    fits, UsageError for a request outside the grammar.
    """
    if not isinstance(request, DeviceRequest):
        request = resolve_request(None if request == AUTO.name else request)
    present = devices(_concerned(request))
    first, *rest = _preferred(_fitting(present, request), request)
    summary = BackendStartupSummary(request, _detected(present), first)
    while True:
        try:
            device = open_listed(summary.selected)
        except GpuError as error:
            if request != AUTO or not rest:
                raise
            log.warning("%s does not open, trying the next device: %s", summary.selected.request, error)
            summary = summary.moved_to(rest.pop(0), str(error))
        else:
            log.info("%s", summary)
            return device, summary


def open_next(summary: BackendStartupSummary, reason: str) -> tuple[Device, BackendStartupSummary] | None:
    """After `summary.selected` was lost or is too small: the next device in rank that opens. None where the caller
    named the device, or nothing is left."""
    if summary.requested != AUTO:
        return None
    for info in next_device(summary.selected):
        try:
            device = open_listed(info)
        except GpuError as error:
            log.warning("%s does not open, trying the next device: %s", info.request, error)
        else:
            return device, summary.moved_to(info, reason)
    return None


def next_device(after: DeviceInfo) -> list[DeviceInfo]:
    """What to try once `after` is lost: the devices below it in rank, without the same hardware under another name."""
    order = [info for info in ranked(devices()) if not (after.physical_id and info.physical_id == after.physical_id)]
    return [info for info in order if info.request != after.request and rank(info) <= rank(after)]


def open_listed(info: DeviceInfo) -> Device:
    """Open a device that `devices` or `next_device` listed."""
    return open_fake(info) if info.fake else registry().open(info)


def install_hint(*names: str) -> str:
    """The command that installs one of these backends, of PACKAGES."""
    return "pip install " + " or ".join(f"bitnet-{name}" for name in names)


def _concerned(request: DeviceRequest) -> list[str] | None:
    """The backends that a request can mean, so that no other driver is loaded for it; None for all."""
    if request.name in (AUTO.name, "gpu"):
        return None
    if str(request) == "cpu":
        return [name for name in registry().backends if RANK.get(name, 0) <= RANK["cpu"]]
    return [request.name]


def _fitting(present: Sequence[DeviceInfo], request: DeviceRequest) -> list[DeviceInfo]:
    """The devices that a request may mean, best first; never empty."""
    if request.name == AUTO.name:
        fitting = ranked(present)
    elif request.name == "gpu":
        fitting = ranked(info for info in present if info.type in _HARDWARE)
    elif request.name == "cpu" and request.index is None:
        fitting = ranked(info for info in present if info.type is DeviceType.CPU)
        fitting.sort(key=lambda info: info.backend != "cpu")
    else:
        own = [info for info in present if info.backend == request.name]
        fitting = ranked(info for info in own if request.index in (None, info.index))
        if own and not fitting:
            raise DeviceNotFoundError(
                f"there is no device {request}",
                backend=request.name,
                hint="Present: " + ", ".join(info.request for info in own),
            )
    if not fitting:
        raise _missing(request)
    return fitting


def _preferred(fitting: list[DeviceInfo], request: DeviceRequest) -> list[DeviceInfo]:
    """`fitting` with the choice of the first plugin that makes one in front."""
    if len(fitting) == 1:
        return fitting
    for plugin, function, names in registry().hook_functions("bitnet_select_device"):
        arguments = {"devices": list(fitting), "request": request}
        try:
            choice = function(**{name: arguments[name] for name in names})
        except Exception as error:  # noqa: BLE001 - a plugin's policy must not stop the program
            log.warning("plugin %s failed to choose a device: %s: %s", plugin, type(error).__name__, error)
            continue
        if choice is not None and choice not in fitting:
            log.warning("plugin %s chose a device that does not fit: %s", plugin, choice)
        elif choice is not None:
            return [choice, *(info for info in fitting if info != choice)]
    return fitting


def _detected(present: Sequence[DeviceInfo]) -> tuple[str, ...]:
    """Backends with a device, best first. The reference device is always there, so it is named only where no other
    CPU backend is."""
    names = list(dict.fromkeys(info.backend for info in sorted(present, key=rank, reverse=True)))
    return tuple(name for name in names if name != "numpy" or "cpu" not in names)


def _missing(request: DeviceRequest) -> GpuError:
    """Why nothing fits, and what to install."""
    found = registry()
    failure = found.failure(request.name)
    if failure is not None and fake_gpus() is None:
        return failure.as_error()
    if request.name == "gpu":
        reasons = [f"{entry.name}: {entry.reason}" for entry in found.quarantined]
        installed = [name for name in found.backends if name not in ("cpu", "numpy")]
        hint = "`bitnet doctor` tells more" if installed else "Install a backend: " + install_hint(*PACKAGES[:-1])
        return DeviceNotFoundError("no GPU found" + "".join(f"; {reason}" for reason in reasons), hint=hint)
    if request.name in found.backends:
        return DeviceNotFoundError(f"BITNET_GPU_FAKE hides '{request.name}'", hint="Unset it to see the real devices")
    if request.name in RANK:
        hint = f"The packages of this project are bitnet-{', bitnet-'.join(PACKAGES)}; others may have one for it"
        if request.name in PACKAGES:
            hint = "Install it: " + install_hint(request.name)
        return DeviceNotFoundError(f"the backend '{request.name}' is not installed", hint=hint)
    return DeviceNotFoundError(
        f"there is no backend '{request.name}'",
        hint=f"Installed: {', '.join(found.backends)}. Known: {', '.join(RANK)}. `bitnet devices` lists the devices",
    )


def _gpu_backends() -> list[str]:
    return [name for name, value in RANK.items() if value > RANK["cpu"]]

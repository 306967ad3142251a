"""Choosing a device: rank, requests, fallback, and the summary of what happened."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bitnet_hal.device import Device, DeviceInfo, DeviceType
from bitnet_hal.discovery.fake import fake_gpus, fake_info, open_fake
from bitnet_hal.discovery.known import (
    GPU_BACKENDS,
    INTEGRATED,
    KNOWN,
    NO_BACKEND,
    OTHER_GPU,
    SOFTWARE,
    backends_here,
    install_hint,
)
from bitnet_hal.discovery.registry import kernels_hash, registry
from bitnet_hal.discovery.request import AUTO, DeviceRequest, parse_request, resolve_request
from bitnet_hal.errors import (
    DeviceLostError,
    DeviceNotFoundError,
    GpuError,
    GpuTimeoutError,
    OutOfMemoryError,
    UsageError,
)
from bitnet_hal.isolation import bounded, described
from bitnet_hal.tuning.measured import token_seconds

log = logging.getLogger(__name__)

_HARDWARE = frozenset({DeviceType.GPU, DeviceType.INTEGRATED})
_PCI_ADDRESS = re.compile(r"([0-9a-f]{4}:[0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


@dataclass(frozen=True, slots=True)
class BackendStartupSummary:
    """What was asked for, what is there, what was taken; `str()` is the line that is logged."""

    requested: DeviceRequest
    detected: tuple[str, ...]  # backends with a device, best first, of those that the request can mean
    selected: DeviceInfo
    skipped: tuple[tuple[DeviceInfo, str], ...] = ()  # better devices that could not be used, and why
    fallback: bool = True  # whether `auto` may go on with another device

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
    """Preference of a device before anything was measured; higher is better. A backend may name its own (`rank`), but
    not for software devices."""
    if info.type is DeviceType.SOFTWARE:
        return SOFTWARE
    own: int | None = None if info.fake else getattr(registry().backends.get(info.backend), "rank", None)
    if own is not None:
        return own
    if info.type is DeviceType.INTEGRATED:
        return INTEGRATED
    hardware = info.type in _HARDWARE
    if info.backend in KNOWN and hardware == (info.backend in GPU_BACKENDS):
        return KNOWN[info.backend].rank
    return OTHER_GPU if hardware else SOFTWARE


def reason(info: DeviceInfo, seconds: Mapping[str, float]) -> str:
    """Why a device has its place, for people. seconds: of the devices that were measured (`token_seconds`)."""
    if info.type is DeviceType.SOFTWARE:
        return "a CPU behind a GPU's API comes after the native CPU"
    if info.request in seconds:
        return f"measured: {1e3 * seconds[info.request]:.3g} ms a token (`bitnet tune`)"
    if rank(info) == INTEGRATED and info.type is DeviceType.INTEGRATED:
        return "reads the CPU's memory, and nobody measured whether it is quicker: see `bitnet tune`"
    return "by its backend's rank; `bitnet tune` measures"


def in_order(devices: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """Best first: by rank, and those that `bitnet tune` measured in the order of their speed, in the places that they
    have by rank together. A software device keeps its place."""
    order = sorted(devices, key=lambda info: (-rank(info), info.backend, info.index))
    seconds = token_seconds((info for info in order if info.type is not DeviceType.SOFTWARE), kernels_hash)
    places = [at for at, info in enumerate(order) if info.request in seconds]
    quickest = sorted((order[at] for at in places), key=lambda info: seconds[info.request])
    for at, info in zip(places, quickest, strict=True):
        order[at] = info
    return order


def ranked(devices: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """As `in_order`; hardware that several backends show counts once, under the best of them."""
    kept: list[DeviceInfo] = []
    for info in in_order(devices):
        if info.type not in _HARDWARE or not any(_same_card(info, other) for other in kept):
            kept.append(info)
    return kept


def _same_card(one: DeviceInfo, other: DeviceInfo) -> bool:
    """Whether two backends show one card. Two devices of one backend are never one."""
    if one.backend == other.backend:
        return one.index == other.index
    return bool(_addresses(one) & _addresses(other))


def _addresses(info: DeviceInfo) -> set[str]:
    """What the physical id may mean. NVIDIA's OpenCL gives the slot of 0000:00:06.0 as device and function (0x30) in
    some drivers and as the device alone (6, which then reads 0000:00:00.6) in others."""
    match = _PCI_ADDRESS.fullmatch(info.physical_id)
    if not match or info.backend != "opencl" or "nvidia" not in (info.vendor + info.name).lower():
        return {info.physical_id} - {""}
    place, device, function = match[1], int(match[2], 16), int(match[3])
    return {info.physical_id, f"{place}:{device * 8 + function:02x}.0"}


def devices(only: Collection[str] | None = None) -> list[DeviceInfo]:
    """All devices, or those of some backends, whose drivers alone are loaded. A driver that fails is left out
    (`bitnet doctor` tells why). Under BITNET_GPU_FAKE the GPUs are those it names.
    """
    found = registry()
    fakes = fake_gpus()
    names = [name for name in found.backends if only is None or name in only]
    if fakes is None:
        found.probe(names)
        return [info for name in names for info in found.devices(name)]
    cpus = [name for name in names if name not in GPU_BACKENDS]  # the others would load a GPU's driver
    listed = [info for name in cpus for info in found.devices(name) if info.type is DeviceType.CPU]
    for name in dict.fromkeys(parse_request(text).name for text in fakes):
        if name not in GPU_BACKENDS:
            raise UsageError(f"BITNET_GPU_FAKE: '{name}' is no GPU backend. Use some of {', '.join(GPU_BACKENDS)}")
        if only is None or name in only:
            listed.append(fake_info(name))
    return listed


def gpu_available() -> bool:
    """Whether a hardware GPU is there that some installed backend can use."""
    return any(info.type in _HARDWARE for info in devices())


def open_device(
    request: str | DeviceRequest | None = None, fallback: bool = True
) -> tuple[Device, BackendStartupSummary]:
    """Open the device that a request names.

    None and "auto" are no choice of the caller, so BITNET_DEVICE applies. Only `auto` goes on to the next device when
    one does not open, and not without `fallback`. DeviceNotFoundError, BackendUnavailableError or
    BackendIncompatibleError if nothing fits, UsageError for a request outside the grammar.
    """
    if not isinstance(request, DeviceRequest):
        request = resolve_request(None if request == AUTO.name else request)
    present = devices(_concerned(request))
    first = _preferred(_fitting(present, request), request)[0]
    summary = BackendStartupSummary(request, _detected(present), first, fallback=fallback)
    try:
        opened = open_listed(first), summary
    except GpuError as error:
        following = open_next(summary, error)
        if following is None:
            raise
        log.warning("%s does not open (%s); going on with %s", first.request, error, following[0].info.request)
        opened = following
    log.info("%s", opened[1])
    return opened


def open_next(summary: BackendStartupSummary, error: GpuError) -> tuple[Device, BackendStartupSummary] | None:
    """After `summary.selected` failed: the next device in rank that opens. None where the caller named the device or
    wants no other, or where nothing is left."""
    if summary.requested != AUTO or not summary.fallback:
        return None
    while following := next_devices(summary, error):
        summary = summary.moved_to(following[0], str(error))
        try:
            return open_listed(following[0]), summary
        except GpuError as failure:
            log.warning("%s does not open: %s", following[0].request, failure)
            error = failure
    return None


def next_devices(summary: BackendStartupSummary, error: GpuError) -> list[DeviceInfo]:
    """What is left to try, best first: not the same card under another backend where the card itself is the matter,
    but so where the backend could not use it."""
    tried = [summary.selected, *(info for info, _ in summary.skipped)]
    left = [info for info in devices() if not any(info.request == other.request for other in tried)]
    if isinstance(error, DeviceLostError | GpuTimeoutError | OutOfMemoryError):
        left = [info for info in left if not _same_card(info, summary.selected)]
    return ranked(left)


def open_listed(info: DeviceInfo) -> Device:
    """Open a device that `devices` or `next_devices` listed."""
    return open_fake(info) if info.fake else registry().open(info)


def _concerned(request: DeviceRequest) -> list[str] | None:
    """The backends that a request can mean, so that no other driver is loaded for it; None for all."""
    if request.name in (AUTO.name, "gpu"):
        return None
    if str(request) == "cpu":
        return [name for name in registry().backends if name not in GPU_BACKENDS]
    return [request.name]


def _fitting(present: Sequence[DeviceInfo], request: DeviceRequest) -> list[DeviceInfo]:
    """The devices that a request may mean, best first; never empty."""
    if request.name == AUTO.name:
        fitting = ranked(present)
    elif request.name == "gpu":
        fitting = ranked(info for info in present if info.type in _HARDWARE and _is_card(info, request.card))
    elif request.name == "cpu" and request.index is None:
        fitting = ranked(info for info in present if info.type is DeviceType.CPU)
        fitting.sort(key=lambda info: info.backend != "cpu")
    else:
        own = [info for info in present if info.backend == request.name]
        fitting = ranked(info for info in own if request.index in (None, info.index) and _is_card(info, request.card))
        if own and not fitting:
            raise DeviceNotFoundError(
                f"there is no device {request}",
                backend=request.name,
                hint="Present: " + ", ".join(info.request for info in own),
            )
    if not fitting:
        raise _missing(request)
    return fitting


def _is_card(info: DeviceInfo, card: str) -> bool:
    """Whether the device is the card of a request, by its PCI address or UUID."""
    known = {_bare(info.physical_id), _bare(str(info.extra.get("uuid", "")))} - {""}
    return not card or card in _addresses(info) or _bare(card) in known


def _bare(uuid: str) -> str:
    """A UUID without what drivers write around its digits."""
    return uuid.lower().removeprefix("gpu-").replace("-", "")


def _preferred(fitting: list[DeviceInfo], request: DeviceRequest) -> list[DeviceInfo]:
    """`fitting` with the choice of the first plugin that makes one in front."""
    if len(fitting) == 1:
        return fitting
    for plugin, function, names in registry().hook_functions("bitnet_select_device"):
        arguments = {"devices": list(fitting), "request": request}
        try:
            choice = bounded(partial(function, **{n: arguments[n] for n in names}), plugin, "choosing a device")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a plugin's policy must not stop the program
            log.warning("plugin %s failed to choose a device: %s", plugin, described(error))
            continue
        if choice is not None and (not isinstance(choice, DeviceInfo) or choice not in fitting):
            log.warning("plugin %s chose a device that does not fit: %s", plugin, str(choice)[:200])
        elif choice is not None:
            return [choice, *(info for info in fitting if info != choice)]
    return fitting


def _detected(present: Sequence[DeviceInfo]) -> tuple[str, ...]:
    """Backends with a device, best first. The reference device is always there, so it is named only where no other
    CPU backend is."""
    names = list(dict.fromkeys(info.backend for info in in_order(present)))
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
        hint = "`bitnet doctor` tells more" if installed else "Install a backend: " + install_hint(*backends_here())
        if request.card:
            return DeviceNotFoundError(f"no GPU has the address or UUID {request.card}", hint="See `bitnet devices -v`")
        return DeviceNotFoundError("no GPU found" + "".join(f"; {reason}" for reason in reasons), hint=hint)
    if request.name in NO_BACKEND and request.name not in found.backends:
        return DeviceNotFoundError(NO_BACKEND[request.name], hint="`bitnet devices` lists what can be named")
    if request.name in found.backends:
        return DeviceNotFoundError(f"BITNET_GPU_FAKE hides '{request.name}'", hint="Unset it to see the real devices")
    if request.name in KNOWN:
        hint = "Install it: " + install_hint(request.name)
        return DeviceNotFoundError(f"the backend '{request.name}' is not installed", hint=hint)
    return DeviceNotFoundError(
        f"there is no backend '{request.name}'",
        hint=f"Installed: {', '.join(found.backends)}. Known: {', '.join(KNOWN)}. `bitnet devices` lists the devices",
    )

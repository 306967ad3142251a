"""Device selection: requests, fallback, and the summary of the choice."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bitnet_hal.device import Device, DeviceInfo, DeviceType
from bitnet_hal.discovery.fake import fake_gpus, fake_info, open_fake
from bitnet_hal.discovery.known import (
    GPU_BACKENDS,
    KNOWN,
    NO_BACKEND,
    backends_here,
    install_hint,
)
from bitnet_hal.discovery.order import HARDWARE, addresses, in_order, ranked, same_card
from bitnet_hal.discovery.registry import registry
from bitnet_hal.discovery.request import AUTO, DeviceRequest, parse_request, resolve_request
from bitnet_hal.errors import (
    BitnetError,
    DeviceLostError,
    DeviceNotFoundError,
    GpuError,
    GpuTimeoutError,
    OutOfMemoryError,
    UsageError,
)
from bitnet_hal.isolation import bounded, describe_error

log = logging.getLogger(__name__)

MAX_FAILED = 8
"""Maximum devices of one backend that `auto` tries; a faulty plugin may list any number."""


@dataclass(frozen=True, slots=True)
class BackendStartupSummary:
    """The request, the backends present and the device selected; `str()` is the line that is logged."""

    requested: DeviceRequest
    detected: tuple[str, ...]  # backends with a device that the request can mean, best first
    selected: DeviceInfo
    skipped: tuple[tuple[DeviceInfo, str], ...] = ()  # preferred devices that failed, and why
    fallback: bool = True  # whether `auto` may fall back to another device

    def __str__(self) -> str:
        selected = self.selected.backend if self.selected.index == 0 else self.selected.request
        return f"requested={self.requested} detected=[{','.join(self.detected)}] selected={selected}"

    @property
    def compute_path(self) -> str:
        """The kind of device: "mock" if it is fake, "fallback" if a preferred device failed, else "real"."""
        if self.selected.fake:
            return "mock"
        return "fallback" if self.skipped else "real"

    def moved_to(self, selected: DeviceInfo, reason: str) -> BackendStartupSummary:
        """Return the summary after `self.selected` failed and another device took its place."""
        return replace(self, selected=selected, skipped=(*self.skipped, (self.selected, reason)))


def devices(only: Collection[str] | None = None) -> list[DeviceInfo]:
    """List all devices. only: backends to list; no other driver is loaded.

    A driver that fails is ignored (`bitnet doctor` explains it). BITNET_GPU_FAKE replaces the GPUs.
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
            raise UsageError(f"BITNET_GPU_FAKE: '{name}' is not a GPU backend. Use some of {', '.join(GPU_BACKENDS)}")
        if only is None or name in only:
            listed.append(fake_info(name))
    return listed


def every_device() -> list[DeviceInfo]:
    """Return the devices that "all" means, best first: each card under its best backend, and the best CPU backend.

    The reference device and CPUs behind a GPU's API are used only if there is nothing else.
    """
    return every_of(devices())


def every_of(listed: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """Return those of the listed devices that `every_device` would."""
    listed = ranked(listed)
    cards = [info for info in listed if info.type in HARDWARE]
    cpus = [info for info in listed if info.type is DeviceType.CPU and info.backend != "numpy"]
    return cards + cpus[:1] or listed[:1]


def gpu_available() -> bool:
    """Return whether an installed backend can use a hardware GPU."""
    return any(info.type in HARDWARE for info in devices())


def open_device(
    request: str | DeviceRequest | None = None, fallback: bool = True
) -> tuple[Device, BackendStartupSummary]:
    """Open the device of a request.

    request: None for that of BITNET_DEVICE, else of the configuration file, else auto. If a device does not open,
    `auto` with `fallback` tries the next one. Raises DeviceNotFoundError, BackendUnavailableError or
    BackendIncompatibleError if no device fits, UsageError if the request does not match the grammar.
    """
    if not isinstance(request, DeviceRequest):
        request = resolve_request(request)
    concerned = _concerned(request)
    present = devices(concerned)
    _check_variables(concerned)
    first = _preferred(_fitting(present, request), request)[0]
    summary = BackendStartupSummary(request, _detected(present), first, fallback=fallback)
    try:
        opened = open_listed(first), summary
    except GpuError as error:
        following = open_next(summary, error)
        if following is None:
            raise
        log.warning("%s does not open (%s); falling back to %s", first.request, error, following[0].info.request)
        opened = following
    log.info("%s", opened[1])
    return opened


def open_next(summary: BackendStartupSummary, error: GpuError) -> tuple[Device, BackendStartupSummary] | None:
    """Open the next device in rank after `summary.selected` failed with `error`.

    Return None if the caller named the device or forbids a fallback, or if no device is left.
    """
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
    """Return the devices left to try, best first.

    If the card itself failed (lost, timed out, full), they exclude the same card under other backends. A backend with
    MAX_FAILED failed devices, or one that did not finish opening a device, is excluded as a whole.
    """
    tried = [summary.selected, *(info for info, _ in summary.skipped)]
    failed = Counter(info.backend for info in tried)
    hangs = isinstance(error, GpuTimeoutError) and error.operation == "open"
    left = [
        info
        for info in devices()
        if not any(info.request == other.request for other in tried)
        and failed[info.backend] < MAX_FAILED
        and not (hangs and info.backend == summary.selected.backend)
    ]
    if isinstance(error, DeviceLostError | GpuTimeoutError | OutOfMemoryError):
        left = [info for info in left if not same_card(info, summary.selected)]
    return ranked(left)


def other_gpus(info: DeviceInfo) -> list[DeviceInfo]:
    """Return the other GPUs with memory of their own, best first, each card once."""
    found = [other for other in devices() if other.type is DeviceType.GPU and other.request != info.request]
    return ranked(other for other in found if not same_card(other, info))


def open_listed(info: DeviceInfo) -> Device:
    """Open a device listed by `devices` or `next_devices`."""
    return open_fake(info) if info.fake else registry().open(info)


def _check_variables(concerned: Collection[str] | None) -> None:
    """Raise the UsageError of a backend that an invalid variable disabled, rather than select a slower device
    silently."""
    for entry in registry().quarantined:
        if isinstance(entry.error, UsageError) and (concerned is None or entry.name in concerned):
            raise entry.error


def _concerned(request: DeviceRequest) -> list[str] | None:
    """Return the backends that a request can mean, so that no other driver is loaded; None for all."""
    if request.name in (AUTO.name, "gpu"):
        return None
    if str(request) == "cpu":
        return [name for name in registry().backends if name not in GPU_BACKENDS]
    return [request.name]


def _fitting(present: Sequence[DeviceInfo], request: DeviceRequest) -> list[DeviceInfo]:
    """Return the devices that match a request, best first. Raises DeviceNotFoundError if there is none."""
    if request.name == AUTO.name:
        fitting = ranked(present)
    elif request.name == "gpu":
        fitting = ranked(info for info in present if info.type in HARDWARE and _is_card(info, request.card))
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
    """Return whether the device has the PCI address or UUID of a request; true for "" (any card)."""
    known = {_bare(info.physical_id), _bare(str(info.extra.get("uuid", "")))} - {""}
    return not card or card in addresses(info) or _bare(card) in known


def _bare(uuid: str) -> str:
    """Return a UUID in lower case without the prefix and dashes that drivers add."""
    return uuid.lower().removeprefix("gpu-").replace("-", "")


def _preferred(fitting: list[DeviceInfo], request: DeviceRequest) -> list[DeviceInfo]:
    """Return `fitting` with the device chosen by a plugin moved to the front."""
    if len(fitting) == 1:
        return fitting
    for plugin, function, names in registry().hook_functions("bitnet_select_device"):
        arguments = {"devices": list(fitting), "request": request}
        try:
            choice = bounded(partial(function, **{n: arguments[n] for n in names}), plugin, "choosing a device")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything; its choice is optional
            log.warning("plugin %s failed to choose a device: %s", plugin, describe_error(error))
            continue
        if choice is not None and (not isinstance(choice, DeviceInfo) or choice not in fitting):
            log.warning("plugin %s chose a device that does not fit: %s", plugin, str(choice)[:200])
        elif choice is not None:
            return [choice, *(info for info in fitting if info != choice)]
    return fitting


def _detected(present: Sequence[DeviceInfo]) -> tuple[str, ...]:
    """Return the backends that have a device, best first; "numpy", which is always present, only without "cpu"."""
    names = list(dict.fromkeys(info.backend for info in in_order(present)))
    return tuple(name for name in names if name != "numpy" or "cpu" not in names)


def _missing(request: DeviceRequest) -> BitnetError:
    """Return the error for a request that no device matches, with a hint that names the package to install."""
    found = registry()
    failure = found.failure(request.name)
    if failure is not None and fake_gpus() is None:
        return failure.as_error()
    if request.name == "gpu":
        reasons = [f"{entry.name}: {entry.reason}" for entry in found.quarantined]
        installed = [name for name in found.backends if name not in ("cpu", "numpy")]
        hint = "`bitnet doctor` explains why" if installed else "Install a backend: " + install_hint(*backends_here())
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

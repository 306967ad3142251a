"""The devices of one model beside the first: what "-d cuda:0,cuda:1,cpu" and "-d all" mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from bitnet_hal.device import Device, DeviceInfo
from bitnet_hal.discovery.presence import present, watchable
from bitnet_hal.discovery.request import ALL, DeviceRequest, parse_request
from bitnet_hal.discovery.selection import devices, every_device, every_of, open_device, open_listed


class SeveralDevices:
    """The devices of a list of requests, or of ALL; see engine.replicas.arrivals.OtherDevices."""

    def __init__(self, requests: Sequence[DeviceRequest]) -> None:
        self.required = ALL not in requests
        self._requests = requests

    def first(self) -> DeviceRequest:
        """Return the request of the device that loads the model."""
        if self.required:
            return self._requests[0]
        best = every_device()[0]
        return DeviceRequest(best.backend, best.index)

    def names(self, first: str) -> list[str]:
        """Return the requests of the others."""
        if self.required:
            return [str(request) for request in self._requests[1:]]
        return [info.request for info in every_device() if info.request != first]

    def open(self, name: str) -> Device:
        """Open a device. Raises its GpuError, DeviceNotFoundError or UsageError."""
        return open_device(parse_request(name), fallback=False)[0]

    def reopen(self, info: DeviceInfo) -> Device:
        """Open a device that `arrived` found. Raises its GpuError."""
        return open_listed(info)

    def arrived(
        self, away: Mapping[str, DeviceInfo | None], used: Sequence[DeviceInfo], *, new: bool
    ) -> dict[str, DeviceInfo]:
        """Return the devices that can be used now; see OtherDevices.arrived."""
        every = watchable()
        concerned = {parse_request(name).name for name in away}
        asked = every if new or "gpu" in concerned else [name for name in every if name in concerned]
        listed = _asked(asked) if asked else []
        listed += [info for info in devices() if info.backend not in every]  # those never come and go
        found: dict[str, DeviceInfo] = {}
        for name, known in away.items():
            match = next((info for info in listed if _is_back(info, name, known, used)), None)
            if match is not None:
                found[name] = known or match  # the index that this process's driver gave it
        if new:
            known_cards = [*used, *(info for info in away.values() if info is not None)]
            for info in every_of([*known_cards, *listed]):
                if not any(_is_same(info, other) for other in known_cards) and info.request not in away:
                    found[info.request] = info
        return found


def _asked(names: Sequence[str]) -> list[DeviceInfo]:
    """Ask drivers, all at once."""
    with ThreadPoolExecutor(len(names)) as pool:
        return [info for found in pool.map(present, names) for info in found.devices]


def _is_back(info: DeviceInfo, name: str, known: DeviceInfo | None, used: Iterable[DeviceInfo]) -> bool:
    """Return whether a listed device is the one of a request, and not one in use that took its index."""
    if known is not None:
        return _is_same(info, known)
    request = parse_request(name)
    fits = request.name in (info.backend, "gpu") and request.index in (None, info.index)
    return fits and not any(_is_same(info, other) for other in used)


def _is_same(info: DeviceInfo, other: DeviceInfo) -> bool:
    """Return whether two descriptions of a backend are of the same device; its index may have changed."""
    if info.backend != other.backend:
        return False
    if info.physical_id and other.physical_id:
        return info.physical_id == other.physical_id
    return info.index == other.index

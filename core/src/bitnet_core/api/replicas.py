"""Load a model for serving, with each device in a process of its own: one device, a list such as "cuda:0,cuda:1,cpu",
or "all"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from subprocess import Popen
from threading import Lock
from typing import Self

from bitnet_hal.device import Device, DeviceInfo
from bitnet_hal.discovery.opening import Opening
from bitnet_hal.discovery.presence import present, watchable
from bitnet_hal.discovery.request import ALL, DeviceRequest, parse_request
from bitnet_hal.discovery.selection import (
    BackendStartupSummary,
    devices,
    every_device,
    every_of,
    open_device,
    open_listed,
)
from bitnet_hal.environment import strict_mode
from bitnet_hal.errors import DeviceNotFoundError, UsageError

from bitnet_core.api.loading import load, open_source
from bitnet_core.api.model import Model
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.replicas.device_process import DeviceProcess
from bitnet_core.engine.replicas.remote_engine import RemoteEngine
from bitnet_core.engine.sampling.constraint import Constraint
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.fields import arguments_of
from bitnet_core.options.loading import LoadOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.progress import Progress
from bitnet_core.structured import compiled
from bitnet_core.tokenizer import load_tokenizer


class ProcessModel:
    """A model in the process of its device (see worker_process.OpenedModel)."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def engine(self) -> Engine:
        """The engine of this process."""
        return self._model.engine

    @property
    def summary(self) -> BackendStartupSummary:
        """The device in use, which changes if one is lost."""
        return self._model.summary

    @property
    def sampling(self) -> list[SamplingParams]:
        """Greedy parameters, and the model's defaults if these are not greedy."""
        defaults = self._model.defaults
        return [defaults.params(temperature=0.0), defaults.params(temperature=defaults.values.temperature or 1.0)]

    def constraint(self, given: Constraint) -> Constraint:
        """Compile the grammar of a constraint."""
        return compiled(given, lambda grammar: self._model.grammars.constraint(grammar))

    def close(self) -> None:
        """Close model and device."""
        self._model.close()


@dataclass(frozen=True, slots=True)
class ReplicaOpener:
    """A picklable function that opens a model in the process of a device. model: as in `load`; an opened source must be
    picklable."""

    model: str | Path | ModelSource | None
    loading: LoadOptions
    options: EngineOptions

    def __call__(self, device: Device, summary: BackendStartupSummary, progress: Progress) -> ProcessModel:
        """Load the model onto a device of this process."""
        options = {**arguments_of(self.loading), **arguments_of(self.options)}
        return ProcessModel(load(self.model, Opening.done(device, summary), progress=progress, **options))

    def alone(self) -> Self:
        """Return the opener of the same model without its draft model."""
        kind = "auto" if self.options.speculate == "draft" else self.options.speculate
        loading = replace(self.loading, draft_model=None, draft_device=None)
        return replace(self, loading=loading, options=replace(self.options, speculate=kind))

    def source(self) -> ModelSource:
        """Open the model's file without a device."""
        strict = strict_mode() if self.loading.strict is None else self.loading.strict
        return open_source(self.model, self.loading.layout, strict, self.loading.mmap)


MakeRoom = Callable[[ModelSource, DeviceProcess], None]
"""Called before a model allocates memory on its device."""


def load_apart(
    opener: ReplicaOpener,
    open_process: Callable[[], DeviceProcess],
    make_room: MakeRoom = lambda source, device: None,
    progress: Progress | None = None,
) -> Model:
    """Load a model onto a device in another process, for a ReplicaSet. It can only serve requests.

    With separate processes, server and engine never wait for each other's hold on the interpreter's lock. Raises the
    errors of `load`.
    """
    with ThreadPoolExecutor(2) as pool:
        opening = pool.submit(open_process)
        try:
            source = opener.source()
        except BaseException:
            if opening.exception() is None:
                opening.result().close()
            raise
        try:
            tokenizer = pool.submit(load_tokenizer, source.tokenizer, prepared=False)
            device = opening.result()
            device.progress = progress
            try:
                make_room(source, device)
            except BaseException:
                device.close()
                raise
            engine = RemoteEngine(source, device, opener)
            device.progress = None
            try:
                return Model(source, tokenizer, engine, engine.summary, opener.options)
            except BaseException:
                engine.close()
                raise
        except BaseException:
            source.close()
            raise


def load_onto(
    opener: ReplicaOpener,
    request: DeviceRequest,
    make_room: MakeRoom = lambda source, device: None,
    progress: Progress | None = None,
    process: Popen[bytes] | None = None,
) -> Model:
    """Load a model onto the device of a request, as `load_apart`. process: a `spawned` process to use."""
    opened = partial(open_device, request, fallback=opener.loading.fallback)
    return load_apart(opener, partial(DeviceProcess, opened, process=process), make_room, progress)


def load_replicas(
    opener: ReplicaOpener,
    several: SeveralDevices,
    make_room: MakeRoom = lambda source, device: None,
    progress: Progress | None = None,
) -> Model:
    """Load a model onto the first of several devices, as `load_apart`; the ReplicaSet opens the others."""
    model = load_apart(opener, lambda: several.open(str(several.first())), make_room, progress)
    model.others = several
    return model


class SeveralDevices:
    """The devices of a list of requests, or of ALL, as OtherDevices."""

    def __init__(self, requests: Sequence[DeviceRequest]) -> None:
        self.required = ALL not in requests
        self._requests = requests
        self._opened: dict[str, str] = {}  # name in the list by the request of the opened device
        self._lock = Lock()

    def first(self) -> DeviceRequest:
        """Return the request of the device that loads the model."""
        if self.required:
            return self._requests[0]
        best = every_device()[0]
        return DeviceRequest(best.backend, best.index)

    def names(self, first: str) -> list[str]:
        """Return the device requests of the others. first: the device that the model was loaded onto."""
        if self.required:
            return [str(request) for request in self._requests[1:]]
        return [info.request for info in every_device() if info.request != first]

    def open(self, name: str) -> DeviceProcess:
        """Open a device in a new process. Raises its GpuError, DeviceNotFoundError, and UsageError if another name of
        the list means the same device."""
        opened = DeviceProcess(partial(open_device, parse_request(name), fallback=False))
        with self._lock:
            known = self._opened.setdefault(opened.info.request, name)
        if known != name:
            opened.close()
            raise UsageError(f"{known} and {name} are the same device, {opened.info.request}: name it once")
        return opened

    def reopen(self, info: DeviceInfo) -> DeviceProcess:
        """Open a device that `arrived` found in a new process. Raises its GpuError."""
        return DeviceProcess(partial(_open_known, info), info)

    def arrived(
        self, away: Mapping[str, DeviceInfo | None], used: Sequence[DeviceInfo], *, new: bool
    ) -> dict[str, DeviceInfo]:
        """Return the devices that can be used now; see OtherDevices.arrived."""
        every = watchable()
        concerned = {parse_request(name).name for name in away}
        asked = every if new or "gpu" in concerned else [name for name in every if name in concerned]
        listed = _asked(asked) if asked else []
        listed += [info for info in devices() if info.backend not in every]  # these devices never change
        found: dict[str, DeviceInfo] = {}
        for name, known in away.items():
            match = next((info for info in listed if _is_back(info, name, known, used)), None)
            if match is not None:
                found[name] = known or match  # with the index in this process, which may differ in another one
        if new:
            known_cards = [*used, *(info for info in away.values() if info is not None)]
            for info in every_of([*known_cards, *listed]):
                if not any(_is_same(info, other) for other in known_cards) and info.request not in away:
                    found[info.request] = info
        return found


def _open_known(known: DeviceInfo) -> tuple[Device, BackendStartupSummary]:
    """Open a device whose index may have changed. Raises DeviceNotFoundError if it is absent."""
    info = next((other for other in devices({known.backend}) if _is_same(other, known)), None)
    if info is None:
        raise DeviceNotFoundError(f"{known.name} is no longer in this machine", backend=known.backend)
    request = DeviceRequest(info.backend, info.index)
    return open_listed(info), BackendStartupSummary(request, (info.backend,), info)


def _asked(names: Sequence[str]) -> list[DeviceInfo]:
    """Ask the drivers of these devices concurrently."""
    with ThreadPoolExecutor(len(names)) as pool:
        return [info for found in pool.map(present, names) for info in found.devices]


def _is_back(info: DeviceInfo, name: str, known: DeviceInfo | None, used: Iterable[DeviceInfo]) -> bool:
    """Return whether a listed device is that of a request, and not one in use that now has its index."""
    if known is not None:
        return _is_same(info, known)
    request = parse_request(name)
    fits = request.name in (info.backend, "gpu") and request.index in (None, info.index)
    return fits and not any(_is_same(info, other) for other in used)


def _is_same(info: DeviceInfo, other: DeviceInfo) -> bool:
    """Return whether two descriptions by a backend are of the same device, whose index may have changed."""
    if info.backend != other.backend:
        return False
    if info.physical_id and other.physical_id:
        return info.physical_id == other.physical_id
    return info.index == other.index

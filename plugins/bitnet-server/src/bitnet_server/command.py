"""The command `bitnet serve`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from bitnet_core.cli.console import note, progress_bar, say, stderr
from bitnet_core.cli.opening import slow_device, use_threads
from bitnet_core.cli.options import ModelOptions, QuietOption
from bitnet_core.cli.parameters import Field, expanded
from bitnet_core.cli.start import exclude_from_collection, turns_of_threads
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.loading import LoadOptions
from bitnet_core.options.split import main_device

from bitnet_server.model_list import ListedModel, Sources, listed_models
from bitnet_server.settings import KEY_VARIABLE, Settings

if TYPE_CHECKING:
    from bitnet_core.api import Model
    from bitnet_core.engine.replicas.device_process import DeviceProcess
    from bitnet_core.model.source import ModelSource
    from bitnet_hal.discovery.request import DeviceRequest

    from bitnet_server.served_model import MakeRoom

STREAM_INTERVAL = 0.02
"""Seconds of greedy decoding that a client who arrives may have to wait for."""

TURN = 0.0005
"""Longest time in seconds that one thread keeps the interpreter's lock while another waits for it. With Python's 5 ms
the event loop and an engine that queues hundreds of launches wait for each other most of the time."""


@expanded
def serve(
    *,
    settings: Settings,
    sources: Sources,
    device: Annotated[str | None, Field(ModelOptions)],
    threads: Annotated[int | None, Field(ModelOptions)],
    loading: LoadOptions,
    engine: EngineOptions,
    quiet: QuietOption = False,
) -> None:
    """Serve models over HTTP, as OpenAI's API, with a chat page at /.

    It listens at once and answers 503 until a single model is loaded; of several, each is loaded at its first request.
    Ctrl-C lets running requests finish.
    """
    if key := os.environ.get(KEY_VARIABLE, "").strip():
        settings = replace(settings, api_keys=(*settings.api_keys, key))
    use_threads(threads)
    engine = replace(engine, stream_interval=STREAM_INTERVAL)
    with turns_of_threads(TURN):
        _start(settings, listed_models(sources, settings.names, device, loading, engine), quiet)


def _start(settings: Settings, models: Sequence[ListedModel], quiet: bool) -> None:
    from bitnet_server.run import run
    from bitnet_server.served_model import ServedModel

    served = [ServedModel(loader(one), one.names, one.nbytes, one.pinned) for one in models]
    if not (settings.loopback or settings.api_keys):
        say(f"warning: anybody who reaches {settings.host} can use this server: there is no API key", "yellow")
    if settings.log_requests:
        _log_requests()
    run(served, settings, _teller(quiet))


def loader(one: ListedModel) -> Callable[[MakeRoom], Model]:
    """Return a function that loads a model. Raises UsageError at once if a device's name is not valid."""
    from bitnet_hal.discovery.request import ALL, resolve_requests

    requests = resolve_requests(main_device(one.engine.split, one.device))

    def load(make_room: MakeRoom) -> Model:
        several = len(requests) > 1 or requests == (ALL,)
        loaded = _loaded(one, requests, make_room, several=several)
        loaded.tokenizer.prepare()
        exclude_from_collection()
        if not several and (hint := slow_device(one.device, loaded.device.info.backend)):
            note(hint)
        return loaded

    return load


def _loaded(one: ListedModel, requests: Sequence[DeviceRequest], make_room: MakeRoom, *, several: bool) -> Model:
    """Load a model in the process of its device after room was made in the device's memory."""
    from bitnet_core.engine.replicas.spawning import spawned

    process = None if several else spawned()  # it imports meanwhile what follows
    from bitnet_core.api.replicas import ReplicaOpener, SeveralDevices, load_onto, load_replicas
    from bitnet_core.engine.capacity import memory_wanted

    opener = ReplicaOpener(one.model, one.loading, one.engine)

    def prepare(source: ModelSource, device: DeviceProcess) -> None:
        make_room(device, memory_wanted(one.engine, source, device))

    with progress_bar("starting") as progress:
        if several:
            return load_replicas(opener, SeveralDevices(requests), prepare, progress)
        return load_onto(opener, requests[0], prepare, progress, process)


def _log_requests() -> None:
    import logging

    logger = logging.getLogger("bitnet_server")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler())
    logger.propagate = False


def _teller(quiet: bool) -> Callable[[str], None]:
    """Return a function that prints the server's messages.

    On a terminal it prints all of them, in a log only the first two (address and model), with `quiet` only the address.
    """
    if stderr().is_terminal and not quiet:
        return say
    left = iter(range(1 if quiet else 2))
    return lambda text: say(text) if next(left, None) is not None else None

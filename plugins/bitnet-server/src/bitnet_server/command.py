"""The command `bitnet serve`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from bitnet_core.cli.console import note, progress_bar, say, stderr
from bitnet_core.cli.opening import slow_device, use_threads
from bitnet_core.cli.options import ModelOptions, QuietOption
from bitnet_core.cli.parameters import expanded
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.fields import arguments_of
from bitnet_core.options.loading import LoadOptions
from bitnet_core.options.split import main_device

from bitnet_server.settings import KEY_VARIABLE, Settings

if TYPE_CHECKING:
    from bitnet_core.api import Model

STREAM_INTERVAL = 0.02
"""Seconds of greedy decoding that a client who arrives may have to wait for."""


@expanded
def serve(
    *,
    settings: Settings,
    model: ModelOptions,
    loading: LoadOptions,
    engine: EngineOptions,
    quiet: QuietOption = False,
) -> None:
    """Serve a model over HTTP, as OpenAI's API, with a chat page at /.

    It listens at once and answers 503 until the model is loaded. Ctrl-C lets running requests finish.
    """
    if key := os.environ.get(KEY_VARIABLE, "").strip():
        settings = replace(settings, api_keys=(*settings.api_keys, key))
    use_threads(model.threads)
    _start(settings, _loader(model, loading, replace(engine, stream_interval=STREAM_INTERVAL)), quiet)


def _start(settings: Settings, load: Callable[[], Model], quiet: bool) -> None:
    from bitnet_server.run import run

    if not (settings.loopback or settings.api_keys):
        say(f"warning: anybody who reaches {settings.host} can use this server: there is no API key", "yellow")
    if settings.log_requests:
        _log_requests()
    run(load, settings, _teller(quiet))


def _loader(options: ModelOptions, loading: LoadOptions, engine: EngineOptions) -> Callable[[], Model]:
    """Return a function that loads the model. Raises UsageError at once if the device's name is not valid."""
    from bitnet_hal.discovery.request import ALL, resolve_requests

    requests = resolve_requests(main_device(engine.split, options.device))

    def load() -> Model:
        from bitnet_core.api import load as load_model
        from bitnet_core.api.replicas import SeveralDevices

        several = SeveralDevices(requests) if len(requests) > 1 or requests == (ALL,) else None
        with progress_bar("starting") as progress:
            loaded = load_model(
                options.model,
                requests[0] if several is None else several.first(),
                progress=progress,
                **arguments_of(loading),
                **arguments_of(engine),
            )
        loaded.others = several
        if several is None and (hint := slow_device(options.device, loaded.device.info.backend)):
            note(hint)
        return loaded

    return load


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

"""`bitnet serve`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet_core.cli import options
from bitnet_core.cli.console import note, progress_bar, say, stderr
from bitnet_hal.errors import UsageError

from bitnet_server import flags
from bitnet_server.settings import Settings

if TYPE_CHECKING:
    from bitnet_core.api import Model


def serve(
    model: options.ModelOption = None,
    device: options.DeviceOption = None,
    host: flags.HostOption = "127.0.0.1",
    port: flags.PortOption = 8080,
    alias: flags.AliasOption = None,
    max_tokens: flags.MaxTokensOption = None,
    max_sequences: flags.MaxSequencesOption = 32,
    max_queue: flags.MaxQueueOption = 256,
    queue_timeout: flags.QueueTimeoutOption = 300.0,
    request_timeout: flags.RequestTimeoutOption = 3600.0,
    drain_delay: flags.DrainDelayOption = 0.0,
    drain_timeout: flags.DrainTimeoutOption = 30.0,
    api_key_file: flags.ApiKeyFileOption = None,
    allowed_hosts: flags.AllowedHostsOption = None,
    cors_origins: flags.CorsOriginsOption = None,
    slots: flags.SlotsOption = False,
    log_requests: flags.LogRequestsOption = False,
    ssl_certfile: flags.SslCertfileOption = None,
    ssl_keyfile: flags.SslKeyfileOption = None,
    kv: options.KvOption = options.KvType.f16,
    kv_budget: options.BudgetOption = None,
    eviction: options.EvictionOption = options.Evicted.lru,
    context: options.ContextOption = None,
    layout: options.LayoutOption = None,
    activation_block: options.ActivationOption = None,
    threads: options.ThreadsOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Serve a model over HTTP, as OpenAI's API, with a chat page at /.

    It listens at once and answers 503 until the model is loaded. Ctrl-C lets the texts under way finish.
    """
    settings = Settings(
        host=host,
        port=port,
        names=_listed(alias),
        max_tokens=max_tokens,
        max_queue=max_queue,
        queue_timeout=queue_timeout,
        request_timeout=request_timeout,
        drain_delay=drain_delay,
        drain_timeout=drain_timeout,
        api_keys=_keys(api_key_file),
        allowed_hosts=tuple(name.lower() for name in _listed(allowed_hosts)),
        cors_origins=_listed(cors_origins),
        slots=slots,
        log_requests=log_requests,
        certificate=str(ssl_certfile) if ssl_certfile else None,
        key=str(ssl_keyfile) if ssl_keyfile else None,
    )
    load = _loader(model, device, kv, kv_budget, eviction, context, max_sequences, layout, activation_block)
    _start(settings, load, quiet)


def _start(settings: Settings, load: Callable[[], Model], quiet: bool) -> None:
    from bitnet_server.run import run

    if not (settings.loopback or settings.api_keys):
        say(f"warning: anybody who reaches {settings.host} can use this server: there is no API key", "yellow")
    if settings.log_requests:
        _log_requests()
    run(load, settings, _teller(quiet))


def _loader(
    model: str | None,
    device: str | None,
    kv: options.KvType,
    kv_budget: str | None,
    eviction: options.Evicted,
    context: int | None,
    max_sequences: int,
    layout: options.Layout | None,
    activation_block: options.ActivationBlock | None,
) -> Callable[[], Model]:
    """Loads the model when it is called; a device that cannot be asked for is refused now."""
    from bitnet_hal.discovery.request import resolve_request

    request = resolve_request(device)
    budget = options.nbytes(kv_budget) if kv_budget else None

    def load() -> Model:
        from bitnet_core.api import load as load_model

        with progress_bar("starting") as progress:
            loaded = load_model(
                model,
                request,
                kv_dtype=kv.value,
                kv_budget=budget,
                eviction=eviction.value,
                context=context,
                max_sequences=max_sequences,
                activation_block=options.block_of(activation_block),
                burst_seconds=0.02,  # what a client that arrives may have to wait for
                layout=layout.value if layout else None,
                progress=progress,
            )
        if hint := options.slow_device(device, loaded.device.info.backend):
            note(hint)
        return loaded

    return load


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _keys(path: Path | None) -> tuple[str, ...]:
    lines = options.read_text(str(path)).splitlines() if path else []
    keys = tuple(line.strip() for line in [*lines, os.environ.get(flags.KEY_VARIABLE, "")] if line.strip())
    if path and not keys:
        raise UsageError(f"{path} holds no API key")
    return keys


def _log_requests() -> None:
    import logging

    logger = logging.getLogger("bitnet_server")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler())
    logger.propagate = False


def _teller(quiet: bool) -> Callable[[str], None]:
    """Tells a person everything; a log gets the address and the model, and no figures; with `quiet` the address."""
    if stderr().is_terminal and not quiet:
        return say
    left = iter(range(1 if quiet else 2))
    return lambda text: say(text) if next(left, None) is not None else None

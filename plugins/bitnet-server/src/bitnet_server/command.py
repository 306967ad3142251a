"""`bitnet serve`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet_core.cli import options
from bitnet_core.cli.console import note, progress_bar, say, stderr
from bitnet_hal.errors import UsageError

from bitnet_server import cli_options
from bitnet_server.settings import Settings

if TYPE_CHECKING:
    from bitnet_core.api import Model


def serve(
    model: options.ModelOption = None,
    device: options.DeviceOption = None,
    host: cli_options.HostOption = "127.0.0.1",
    port: cli_options.PortOption = 8080,
    alias: cli_options.AliasOption = None,
    max_tokens: cli_options.MaxTokensOption = None,
    max_sequences: cli_options.MaxSequencesOption = 32,
    max_queue: cli_options.MaxQueueOption = 256,
    queue_timeout: cli_options.QueueTimeoutOption = 300.0,
    request_timeout: cli_options.RequestTimeoutOption = 3600.0,
    drain_delay: cli_options.DrainDelayOption = 0.0,
    drain_timeout: cli_options.DrainTimeoutOption = 30.0,
    api_key_file: cli_options.ApiKeyFileOption = None,
    allowed_hosts: cli_options.AllowedHostsOption = None,
    cors_origins: cli_options.CorsOriginsOption = None,
    slots: cli_options.SlotsOption = False,
    log_requests: cli_options.LogRequestsOption = False,
    ssl_certfile: cli_options.SslCertfileOption = None,
    ssl_keyfile: cli_options.SslKeyfileOption = None,
    kv: options.KvOption = options.KvType.f16,
    kv_size: options.BudgetOption = None,
    eviction: options.EvictionOption = options.Evicted.lru,
    context: options.ContextOption = None,
    layout: options.LayoutOption = None,
    group_size: options.ActivationOption = None,
    deterministic: options.DeterministicOption = False,
    threads: options.ThreadsOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Serve a model over HTTP, as OpenAI's API, with a chat page at /.

    It listens at once and answers 503 until the model is loaded. Ctrl-C lets running requests finish.
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
    cache = (kv, kv_size, eviction, context, max_sequences)
    load = _loader(model, device, *cache, layout, group_size, deterministic=deterministic)
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
    kv_size: str | None,
    eviction: options.Evicted,
    context: int | None,
    max_sequences: int,
    layout: options.Layout | None,
    group_size: options.ActivationGroupSize | None,
    *,
    deterministic: bool,
) -> Callable[[], Model]:
    """Loads the model when it is called; a device that cannot be asked for is refused now."""
    from bitnet_hal.discovery.request import resolve_request

    request = resolve_request(device)
    budget = options.nbytes(kv_size) if kv_size else None

    def load() -> Model:
        from bitnet_core.api import load as load_model

        with progress_bar("starting") as progress:
            loaded = load_model(
                model,
                request,
                kv_dtype=kv.value,
                kv_cache_bytes=budget,
                eviction=eviction.value,
                context=context,
                max_sequences=max_sequences,
                activation_group_size=options.group_size_of(group_size),
                deterministic=deterministic,
                stream_interval=0.02,  # what a client that arrives may have to wait for
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
    keys = tuple(line.strip() for line in [*lines, os.environ.get(cli_options.KEY_VARIABLE, "")] if line.strip())
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

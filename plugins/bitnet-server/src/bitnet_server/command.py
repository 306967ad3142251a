"""`bitnet serve`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from bitnet_core.cli import options
from bitnet_core.cli.console import say, stderr
from bitnet_core.errors import UsageError

if TYPE_CHECKING:
    from bitnet_core.api import Model

KEY_VARIABLE = "BITNET_API_KEY"


def serve(
    model: options.ModelOption = None,
    device: options.DeviceOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    alias: Annotated[
        str | None, typer.Option(metavar="A,B", help="Names of the model for clients. Default: its own name.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", min=1, help="Of a chat answer whose request names no limit.")
    ] = None,
    max_sequences: Annotated[int, typer.Option(min=1, help="Texts made at a time.")] = 32,
    max_queue: Annotated[int, typer.Option(min=0, help="Texts waiting; more are answered 429.")] = 256,
    queue_timeout: Annotated[float, typer.Option(min=0, help="Seconds a text may wait for its turn.")] = 300.0,
    request_timeout: Annotated[float, typer.Option(min=1, help="Seconds an answer may take.")] = 3600.0,
    drain_delay: Annotated[
        float, typer.Option(min=0, help="Seconds between a signal and the refusal of new work.")
    ] = 0.0,
    drain_timeout: Annotated[float, typer.Option(min=0, help="Seconds that texts under way get to finish.")] = 30.0,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"API keys, one a line. {KEY_VARIABLE} may hold one as well.")
    ] = None,
    allowed_hosts: Annotated[
        str | None, typer.Option(metavar="A,B", help="Names that clients call this server by; * for any.")
    ] = None,
    cors_origins: Annotated[
        str | None, typer.Option(metavar="A,B", help="Web origins that may ask, beyond this machine's; * for any.")
    ] = None,
    slots: Annotated[bool, typer.Option("--slots", help="Offer /slots, which shows the texts under way.")] = False,
    log_requests: Annotated[bool, typer.Option("--log-requests", help="Log every request, without its text.")] = False,
    ssl_certfile: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate, for https.")] = None,
    ssl_keyfile: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")] = None,
    kv: options.KvOption = options.KvType.f16,
    kv_budget: options.BudgetOption = None,
    eviction: options.EvictionOption = options.Evicted.lru,
    context: options.ContextOption = None,
    layout: options.LayoutOption = None,
) -> None:
    """Serve a model over HTTP, as OpenAI's API, with a chat page at /.

    It listens at once and answers 503 until the model is loaded. Ctrl-C lets the texts under way finish.
    """
    from bitnet_core.discovery.request import resolve_request

    from bitnet_server.run import run
    from bitnet_server.settings import Settings

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
    if not (settings.loopback or settings.api_keys):
        say(f"warning: anybody who reaches {host} can use this server: there is no API key", "yellow")
    if log_requests:
        _log_requests()
    request = resolve_request(device)

    def load() -> Model:
        from bitnet_core.api import load as load_model

        return load_model(
            model,
            request,
            kv_dtype=kv.value,
            kv_budget=options.nbytes(kv_budget) if kv_budget else None,
            eviction=eviction.value,
            context=context,
            max_sequences=max_sequences,
            burst_seconds=0.02,  # what a client that arrives may have to wait for
            layout=layout.value if layout else None,
        )

    run(load, settings, _teller())


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _keys(path: Path | None) -> tuple[str, ...]:
    lines = options.read_text(str(path)).splitlines() if path else []
    keys = tuple(line.strip() for line in [*lines, os.environ.get(KEY_VARIABLE, "")] if line.strip())
    if path and not keys:
        raise UsageError(f"{path} holds no API key")
    return keys


def _log_requests() -> None:
    import logging

    logger = logging.getLogger("bitnet_server")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler())
    logger.propagate = False


def _teller() -> Callable[[str], None]:
    """Tells a person everything; a log gets the address and the model, and no figures."""
    if stderr().is_terminal:
        return say
    left = iter(range(2))
    return lambda text: say(text) if next(left, None) is not None else None

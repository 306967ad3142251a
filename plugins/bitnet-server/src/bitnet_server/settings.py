"""The server's own settings."""

from __future__ import annotations

from dataclasses import dataclass

from bitnet_core.cli.text_files import read_text
from bitnet_core.options.fields import check_options, option
from bitnet_hal.errors import UsageError

KEY_VARIABLE = "BITNET_API_KEY"
_GROUP = "Server"


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _hosts(text: str) -> tuple[str, ...]:
    return tuple(name.lower() for name in _listed(text))


def _keys(path: str) -> tuple[str, ...]:
    """Read API keys, one per line. Raises UsageError for a file without any."""
    keys = tuple(line.strip() for line in read_text(path).splitlines() if line.strip())
    if not keys:
        raise UsageError(f"{path} holds no API key")
    return keys


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server. Times are in seconds."""

    host: str = option("127.0.0.1", group=_GROUP, help="Address to listen on; 0.0.0.0 for every network.")
    port: int = option(8080, at_least=0, at_most=65535, group=_GROUP, help="Port to listen on; 0 takes a free one.")
    names: tuple[str, ...] = option(
        (),
        flags=("--alias",),
        metavar="A,B",
        parse=_listed,
        group=_GROUP,
        help="Names of the model for clients; the first is its id. Default: its own name.",
    )
    idle: float | None = option(
        None,
        above=0,
        metavar="SECONDS",
        group=_GROUP,
        help="Seconds without requests after which a model is unloaded; its next request loads it. Default: never.",
    )
    max_loaded: int | None = option(
        None,
        at_least=1,
        group=_GROUP,
        help="Most models that are loaded at a time. Default: as many as fit in memory.",
    )
    max_tokens: int | None = option(
        None,
        flags=("--max-tokens", "-n"),
        at_least=1,
        group=_GROUP,
        help="Maximum tokens of a chat answer whose request names no limit. Default: the room in the context.",
    )
    max_queue: int = option(256, at_least=0, group=_GROUP, help="Requests that may wait; more are answered 429.")
    queue_timeout: float = option(
        300.0, at_least=0, group=_GROUP, help="Seconds for which a request may wait for admission."
    )
    request_timeout: float = option(3600.0, above=0, group=_GROUP, help="Seconds that an answer may take.")
    drain_delay: float = option(
        0.0, at_least=0, group=_GROUP, help="Seconds between a signal to stop and the refusal of new requests."
    )
    drain_timeout: float = option(
        30.0, at_least=0, group=_GROUP, help="Seconds that running requests have to finish after a signal to stop."
    )
    api_keys: tuple[str, ...] = option(
        (),
        flags=("--api-key-file",),
        metavar="FILE",
        parse=_keys,
        group=_GROUP,
        help=f"API keys, one a line; {KEY_VARIABLE} may hold another. Default: no key is needed.",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        metavar="A,B",
        parse=_hosts,
        group=_GROUP,
        help="Names by which clients may call this server, beyond those of loopback; * for any.",
    )
    cors_origins: tuple[str, ...] = option(
        (),
        metavar="A,B",
        parse=_listed,
        group=_GROUP,
        help="Web origins that may send requests, beyond this machine's; * for any.",
    )
    slots: bool = option(False, group=_GROUP, help="Offer /slots, which shows the running requests.")
    log_requests: bool = option(False, group=_GROUP, help="Log every request, without its text.")
    certificate: str | None = option(
        None, flags=("--ssl-certfile",), metavar="FILE", group=_GROUP, help="Certificate, for https."
    )
    key: str | None = option(
        None, flags=("--ssl-keyfile",), metavar="FILE", group=_GROUP, help="Private key of the certificate."
    )
    keep_alive: float = 15.0
    max_body: int = 16 << 20
    body_timeout: float = 30.0
    send_timeout: float = 30.0

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def loopback(self) -> bool:
        """True if only this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

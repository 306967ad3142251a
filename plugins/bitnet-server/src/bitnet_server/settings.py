"""What a server is told at its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """names: the model answers to them, the first is its id; none: the file's name. max_tokens: of a chat answer where
    the request says nothing (None: the room in the context). Times are in seconds. api_keys: none means open.
    allowed_hosts: names beyond those of loopback, "*" for all. cors_origins: beyond loopback's, "*" for all.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    names: tuple[str, ...] = ()
    max_tokens: int | None = None
    max_queue: int = 256
    queue_timeout: float = 300.0
    request_timeout: float = 3600.0
    drain_delay: float = 0.0
    drain_timeout: float = 30.0
    api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    slots: bool = False
    log_requests: bool = False
    certificate: str | None = None
    key: str | None = None
    keep_alive: float = 15.0
    max_body: int = 16 << 20
    body_timeout: float = 30.0
    send_timeout: float = 30.0

    @property
    def loopback(self) -> bool:
        """Only this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

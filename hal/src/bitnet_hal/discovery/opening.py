"""A device that is being opened while the caller does something else: a driver's start takes tenths of a second."""

from __future__ import annotations

from concurrent.futures import Future, wait
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Self

from bitnet_hal.device import Device
from bitnet_hal.discovery.request import DeviceRequest
from bitnet_hal.discovery.selection import BackendStartupSummary, open_device
from bitnet_hal.errors import BitnetError


class Opening:
    """`open_device` with these arguments, begun in a thread of its own. A context manager: where its block fails, a
    device that nobody has taken by then is closed."""

    def __init__(self, request: str | DeviceRequest | None = None, fallback: bool = True) -> None:
        self._opened: Future[tuple[Device, BackendStartupSummary]] = Future()
        self._taken = False
        # a driver that hangs does not keep the program from ending
        Thread(target=self._open, args=(request, fallback), name="bitnet-open", daemon=True).start()

    def _open(self, request: str | DeviceRequest | None, fallback: bool) -> None:
        try:
            self._opened.set_result(open_device(request, fallback))
        except BaseException as error:  # noqa: BLE001 - raised again for whoever waits
            self._opened.set_exception(error)

    def result(self) -> tuple[Device, BackendStartupSummary]:
        """The device, which is then the caller's to close, or what `open_device` raised."""
        opened = self._opened.result()
        self._taken = True
        return opened

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or self._taken:
            return
        self._taken = True
        if isinstance(error, Exception):
            wait([self._opened])
        self._opened.add_done_callback(_close)  # at once, but an interrupt does not wait for a driver


def _close(opened: Future[tuple[Device, BackendStartupSummary]]) -> None:
    if opened.exception() is None:
        with suppress(BitnetError):
            opened.result()[0].close()

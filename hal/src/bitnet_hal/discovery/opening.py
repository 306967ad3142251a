"""Opening of a device in the background: a driver takes tenths of a second to start."""

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
    """A call of `open_device` in a thread.

    As a context manager it closes the device if the block fails before `result`.
    """

    def __init__(self, request: str | DeviceRequest | None = None, fallback: bool = True) -> None:
        self._opened: Future[tuple[Device, BackendStartupSummary]] = Future()
        self._taken = False
        # daemon: a driver that hangs does not keep the program from ending
        Thread(target=self._open, args=(request, fallback), name="bitnet-open", daemon=True).start()

    @classmethod
    def done(cls, device: Device, summary: BackendStartupSummary) -> Self:
        """Return the opening of a device that is open already."""
        opening = cls.__new__(cls)
        opening._opened, opening._taken = Future(), False
        opening._opened.set_result((device, summary))
        return opening

    def _open(self, request: str | DeviceRequest | None, fallback: bool) -> None:
        try:
            self._opened.set_result(open_device(request, fallback))
        except BaseException as error:  # noqa: BLE001 - raised again for whoever waits
            self._opened.set_exception(error)

    def result(self) -> tuple[Device, BackendStartupSummary]:
        """Return the device, which the caller must close, or raise the exception of `open_device`."""
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
        self._opened.add_done_callback(_close)  # runs once the device is open; an interrupt does not wait for that


def _close(opened: Future[tuple[Device, BackendStartupSummary]]) -> None:
    if opened.exception() is None:
        with suppress(BitnetError):
            opened.result()[0].close()

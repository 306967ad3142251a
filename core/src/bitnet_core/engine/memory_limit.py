"""A limit on the memory that models allocate on a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bitnet_hal.device import Buffer, Device, DeviceInfo, MemoryKind
from bitnet_hal.errors import OutOfMemoryError


class MemoryAccount:
    """The bytes that models have allocated on one device, and their limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def left(self) -> int:
        """Bytes that may still be allocated."""
        return max(0, self.limit - self.used)


def limit_memory(device: Device, limit: int | None, beside: Device | None = None) -> None:
    """Limit the allocations of an open device to `limit` bytes of its own memory, and its reported memory likewise.

    Nothing changes if the limit is None or the device already has one. The driver's own allocations, and host memory
    that the device reads in place, are not counted. beside: a device with a limit, which `device` shares if both are
    the same device, opened twice.
    """
    if limit is None or account_of(device) is not None:
        return
    account = MemoryAccount(limit)
    if beside is not None and beside.info.request == device.info.request:
        account = account_of(beside) or account
    _count(device, account)


def account_of(device: Device) -> MemoryAccount | None:
    """Return the account of a device with a limit, None for another device."""
    return getattr(type(device), "memory_account", None)


def _count(device: Device, account: MemoryAccount) -> None:
    """Count the allocations of a device. Its class is replaced, because other objects hold references to it."""
    kind = type(device)
    alloc, free, free_memory = device.alloc, device.free, device.free_memory
    total = device.info.total_memory or account.limit
    counted: dict[int, int] = {}  # bytes by the id of the buffer, which the device keeps alive
    seen = replace(device.info, total_memory=min(total, account.limit))

    def limited_alloc(_: Any, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        if kind is not MemoryKind.DEVICE:
            return alloc(nbytes, kind)
        if nbytes > account.left:
            raise _exceeded(seen, account, nbytes)
        buffer = alloc(nbytes, kind)
        counted[id(buffer)] = nbytes
        account.used += nbytes
        return buffer

    def limited_free(_: Any, buffer: Buffer) -> None:
        free(buffer)
        account.used -= counted.pop(id(buffer), 0)

    def limited_free_memory(_: Any) -> int:
        known = free_memory()
        return account.left if known < 0 else min(known, account.left)

    members: dict[str, Any] = {
        "__slots__": (),
        "memory_account": account,
        "info": property(lambda _: seen),
        "alloc": limited_alloc,
        "free": limited_free,
        "free_memory": limited_free_memory,
    }
    device.__class__ = type(kind.__name__, (kind,), members)


def _exceeded(info: DeviceInfo, account: MemoryAccount, nbytes: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"cannot allocate {nbytes:,} bytes: device_memory allows {account.limit:,}, of which {account.left:,} are left",
        requested=nbytes,
        free=account.left,
        backend=info.backend,
        device=info.name,
        operation="alloc",
        hint="Use a larger --device-memory or a smaller --context",
    )

"""Queries for the tuning of a launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bitnet_hal.device import DeviceInfo, Tuning
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.spec import Constants, KernelSpec, Params

FEW_ROWS = 8
"""Maximum rows of a decode step; up to this number, every backend must keep the kernels of a step batch-invariant."""


def shared_heads(params: Params, limit: int) -> int:
    """Return the largest divisor, at most `limit`, of the number of query heads per key/value head."""
    group = int(params["n_heads"]) // int(params["n_kv_heads"])
    return max(n for n in range(1, limit + 1) if group % n == 0)


@dataclass(frozen=True, slots=True)
class TuningQuery:
    """The arguments of `Device.tuning` and the device. Raises UnsupportedError for a kernel it does not offer.

    query["rows"] is the constant or parameter of this name as an int; `"k" in query` tests for one.
    """

    spec: KernelSpec
    constants: Constants
    params: Params
    info: DeviceInfo

    def __post_init__(self) -> None:
        if not self.spec.base and self.spec.name not in self.info.kernels:
            raise self.unsupported("the device does not offer this kernel")

    def __contains__(self, name: str) -> bool:
        return name in self.constants or name in self.params

    def __getitem__(self, name: str) -> int:
        return int(self.constants[name] if name in self.constants else self.params[name])

    def of_device(self, name: str) -> int:
        """Return an entry of DeviceInfo.extra as an int."""
        return int(self.info.extra[name])

    def size(self, name: str) -> int:
        """Return the constant or parameter `name`, or `padded_rows`, or an entry of DeviceInfo.extra."""
        if name in self:
            return self[name]
        return self.padded_rows if name == "padded_rows" else self.of_device(name)

    @property
    def padded_rows(self) -> int:
        """The rows rounded up to a power of two, so that few compiled kernels serve all numbers of rows."""
        return 1 << (self["rows"] - 1).bit_length()

    def shared_heads(self, limit: int) -> int:
        """Return the number of query heads for one workgroup (`shared_heads`)."""
        return shared_heads(self.params, limit)

    def unsupported(self, why: str) -> UnsupportedError:
        """Return the error for a launch that this kernel cannot serve, or that another kernel serves better."""
        return UnsupportedError(
            f"{self.spec.name}: {why}", backend=self.info.backend, device=self.info.name, operation="tuning"
        )


class TuningMixin:
    """A mixin for devices that choose tunings with functions of `TuningQuery`; list it before the base class.

    select_tuning: implements `tuning`. candidate_tunings: implements `tunings`.
    """

    info: DeviceInfo
    select_tuning: Callable[[TuningQuery], Tuning]
    candidate_tunings: Callable[[TuningQuery], list[Tuning]]

    def tuning(self, spec: KernelSpec, constants: Constants, params: Params) -> Tuning:
        """See Device."""
        return self.select_tuning(TuningQuery(spec, constants, params, self.info))

    def tunings(self, spec: KernelSpec, constants: Constants, params: Params) -> list[Tuning]:
        """See TunableDevice."""
        return self.candidate_tunings(TuningQuery(spec, constants, params, self.info))

"""A launch that a plugin is asked to tune."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bitnet_hal.device import DeviceInfo, Tuning
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.kernels.spec import Constants, KernelSpec, Params

FEW_ROWS = 8
"""Rows up to which a step is a decode step."""


def shared_heads(params: Params, most: int) -> int:
    """Query heads of a group, `most` at most, which have one key/value head."""
    group = int(params["n_heads"]) // int(params["n_kv_heads"])
    return max(n for n in range(1, most + 1) if group % n == 0)


@dataclass(frozen=True, slots=True)
class TuningQuery:
    """What `Device.tuning` is given, and the device. UnsupportedError for an optional kernel that it does not offer.

    wanted["rows"] is that constant or parameter, as a whole number; `"k" in wanted` says whether there is one.
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
        """What DeviceInfo.extra has by this name, as a whole number."""
        return int(self.info.extra[name])

    def size(self, name: str) -> int:
        """A constant or parameter, or `room`, or else what DeviceInfo.extra has by this name."""
        return self[name] if name in self else self.room if name == "room" else self.of_device(name)

    @property
    def room(self) -> int:
        """Rows that a tile or a workspace is for: a power of two, so that few kernels serve all numbers of rows."""
        return 1 << (self["rows"] - 1).bit_length()

    def shared_heads(self, most: int) -> int:
        """Query heads that one group takes, of those with the same key/value head."""
        return shared_heads(self.params, most)

    def unsupported(self, why: str) -> UnsupportedError:
        """To be raised for a launch that another kernel does better, or this one not at all."""
        return UnsupportedError(
            f"{self.spec.name}: {why}", backend=self.info.backend, device=self.info.name, operation="tuning"
        )


class TuningMixin:
    """Before the base of a device whose tunings are functions of `TuningQuery`. choose: what `tuning` gives; offered:
    what `tunings` gives."""

    info: DeviceInfo
    select_tuning: Callable[[TuningQuery], Tuning]
    candidate_tunings: Callable[[TuningQuery], list[Tuning]]

    def tuning(self, spec: KernelSpec, constants: Constants, params: Params) -> Tuning:
        """See Device."""
        return self.select_tuning(TuningQuery(spec, constants, params, self.info))

    def tunings(self, spec: KernelSpec, constants: Constants, params: Params) -> list[Tuning]:
        """See TunableDevice."""
        return self.candidate_tunings(TuningQuery(spec, constants, params, self.info))

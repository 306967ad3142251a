"""Offload: the CPU computes the first layers of a model that does not fit in the memory of a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from bitnet_hal.device import Device, DeviceType
from bitnet_hal.errors import GpuError
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.part import Part
from bitnet_core.engine.placement import offloaded_layers
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.weight_sizes import layer_bytes
from bitnet_core.units import size

log = logging.getLogger(__name__)

_MOVES = 8
"""Number of moves that would offload the whole model: each moves an eighth of its layers."""


class Offload:
    """The number of offloaded layers, and the CPU. open_cpu: opens the CPU; None disables offload."""

    def __init__(self, source: ModelSource, options: EngineOptions, open_cpu: Callable[[], Device] | None) -> None:
        self._source = source
        self._options = options
        self._open_cpu = open_cpu
        self._opened: list[Device] = []

    def first(self, device: Device) -> list[tuple[Device, int]]:
        """Return the CPU with its number of layers, for a device on which nothing is loaded; [] to offload nothing.

        Raises UsageError as offloaded_layers.
        """
        if self._open_cpu is None:
            return []
        layers = offloaded_layers(self._source, self._options, device)
        if layers and self._options.offload == "auto":
            self._tell(device, layers)
        return [(self._cpu(), layers)] if layers else []

    def more(self, parts: Sequence[Part]) -> list[tuple[Device, int]]:
        """Return the CPU with more layers than it has in `parts`; [] if the options, or the device of the last part, do
        not allow that."""
        *before, last = parts
        options = self._options
        movable = last.config.n_layers - 1
        if self._open_cpu is None or options.offload != "auto" or options.split is not None or not movable:
            return []
        if last.device.info.type is not DeviceType.GPU:
            return []
        moved = min(movable, ceil_div(self._source.config.n_layers, _MOVES))
        layers = moved + sum(part.config.n_layers for part in before)
        self._tell(last.device, layers)
        return [(before[0].device if before else self._cpu(), layers)]

    def close(self) -> None:
        """Close the CPU, for an engine that could not be created."""
        for device in self._opened:
            with suppress(GpuError):  # the error that ended the engine is reported instead
                device.close()

    def _cpu(self) -> Device:
        assert self._open_cpu is not None  # the callers check it
        self._opened.append(self._open_cpu())
        return self._opened[-1]

    def _tell(self, device: Device, layers: int) -> None:
        config: ModelConfig = self._source.config
        log.warning(
            "%s lacks memory: it computes %d of %d layers, the CPU the other %d, and reads %s for each step",
            device.info.request,
            config.n_layers - layers,
            config.n_layers,
            layers,
            size(layer_bytes(config.part(0, layers))),
        )

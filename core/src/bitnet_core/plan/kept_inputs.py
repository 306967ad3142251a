"""The inputs of delta nets in a step whose rows may be rejected, kept to repeat the step for the accepted rows.

The state of a delta net cannot be truncated by position. So it is saved before the step; afterwards it is restored, and
the convolutions and delta rules run again over the accepted rows.
"""

from __future__ import annotations

from bitnet_hal.device import Device, View
from bitnet_hal.rounding import round_up

from bitnet_core.model.config import ModelConfig
from bitnet_core.plan.pool import MemoryPool


def kept_bytes(config: ModelConfig, rows: int, alignment: int) -> int:
    """Return the bytes of the kept inputs of a step of `rows` rows."""
    nets = config.n_layers - config.attention_layers
    return nets * sum(round_up(rows * size, alignment) for size in _row_bytes(config))


def _row_bytes(config: ModelConfig) -> tuple[int, int]:
    """Return the bytes of a row of [q | k | v] before the convolution, and of a row of the gates."""
    return (4 * config.delta.channels, 8 * config.delta.value_heads) if config.delta else (0, 0)


class KeptInputs:
    """Views of [q | k | v] and of the gates for each delta net, for steps of up to `rows` rows."""

    def __init__(self, device: Device, pool: MemoryPool, config: ModelConfig, rows: int) -> None:
        self._pool = pool
        self._sizes = _row_bytes(config)
        self._strides = [round_up(rows * size, device.info.alignment) for size in self._sizes]
        self._buffer = pool.alloc(kept_bytes(config, rows, device.info.alignment))

    def views(self, net: int, rows: int) -> tuple[View, View]:
        """Return [q | k | v] and the gates of the delta net with this number, for a step of `rows` rows."""
        first = net * sum(self._strides)
        qkv, gates = self._sizes
        start = first + self._strides[0]
        return View(self._buffer, first, rows * qkv), View(self._buffer, start, rows * gates)

    def free(self) -> None:
        """Return the buffer to the pool."""
        self._pool.free(self._buffer)

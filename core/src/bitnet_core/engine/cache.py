"""What is kept of texts on the device: paged keys and values, block tables, and states of delta nets."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Buffer, Device, View
from bitnet_hal.kernels.catalogue import KV_BLOCK, KV_TYPES, ceil_div, kv_row_bytes

from bitnet_core.model.config import DeltaNet, ModelConfig
from bitnet_core.plan.pool import MemoryPool


def block_bytes(config: ModelConfig, kv_dtype: str) -> int:
    """Bytes of one block in one layer's key (or value) buffer."""
    return KV_BLOCK * config.n_kv_heads * kv_row_bytes(KV_TYPES.index(kv_dtype), config.head_dim)


def cache_bytes(config: ModelConfig, kv_dtype: str, blocks: int, lanes: int) -> int:
    """Bytes of a cache, block tables apart."""
    return 2 * config.attention_layers * blocks * block_bytes(config, kv_dtype) + lanes * config.state_bytes


class KVCache:
    """`blocks` blocks in every layer with attention, tables for `sequences` lanes, and in every delta net a state for
    each lane and `snapshots` more; a lane is a sequence's row of the tables."""

    def __init__(
        self,
        device: Device,
        pool: MemoryPool,
        config: ModelConfig,
        *,
        kv_dtype: str,
        blocks: int,
        sequences: int,
        context: int,
        snapshots: int = 0,
    ) -> None:
        self._device, self._pool = device, pool
        self.blocks, self.sequences, self.snapshots = blocks, sequences, snapshots
        self.max_blocks = ceil_div(context, KV_BLOCK)
        size, layers = blocks * block_bytes(config, kv_dtype), config.attention_layers
        self.nbytes = cache_bytes(config, kv_dtype, blocks, sequences + snapshots)
        self._buffers: list[Buffer] = []
        net = config.delta
        self._rows = np.full((sequences, self.max_blocks), -1, np.int32)
        self._tables: list[list[int]] = [[] for _ in range(sequences)]
        self._changed: set[int] = set()  # lanes whose tables the device does not have yet
        try:
            self.keys = tuple(self._alloc(size) for _ in range(layers))
            self.values = tuple(self._alloc(size) for _ in range(layers))
            self.states = tuple(self._states(net) for _ in range(config.n_layers - layers)) if net else ()
            self.tables = self._alloc(self._rows.nbytes)
            device.upload(self.tables, self._rows.data.cast("B"))
        except BaseException:
            self.free()
            raise

    def set_table(self, lane: int, blocks: list[int]) -> None:
        """Make `blocks` the table of a lane, from the next `upload_tables` on."""
        if self._tables[lane] == blocks:
            return
        self._tables[lane] = list(blocks)
        row = self._rows[lane]
        row[: len(blocks)] = blocks
        row[len(blocks) :] = -1
        self._changed.add(lane)

    def upload_tables(self) -> None:
        """To be called before what uses them is queued; lanes side by side go at once."""
        while self._changed:
            first = end = min(self._changed)
            while end in self._changed:
                end += 1
            rows = self._rows[first:end]
            self._pool.upload(self.tables.part(first * self._rows[0].nbytes, rows.nbytes), rows.data.cast("B"))
            self._changed.difference_update(range(first, end))

    def slots(self, lanes: npt.NDArray[np.int64], positions: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """i32[n] cache slots of positions of lanes; -1 where the block is not there."""
        blocks = self._rows[lanes, positions // KV_BLOCK]
        return np.where(blocks >= 0, blocks * KV_BLOCK + positions % KV_BLOCK, -1).astype(np.int32)

    def free(self) -> None:
        """Give all buffers back to the pool."""
        for buffer in self._buffers:
            self._pool.free(buffer)
        self._buffers.clear()

    def _states(self, net: DeltaNet) -> tuple[View, View]:
        """Of one delta net: f32[lanes, taps - 1, channels], f32[lanes, heads, key_dim, value_dim], lanes for sequences
        and then for snapshots. A kernel begins them as zeros at position 0."""
        lanes, (inputs, heads) = self.sequences + self.snapshots, net.state_sizes
        return self._alloc(4 * lanes * inputs), self._alloc(4 * lanes * heads)

    def copy_states(self, source: int, target: int) -> None:
        """All that delta nets keep in one lane, into another."""
        for view in (view for pair in self.states for view in pair):
            size = view.nbytes // (self.sequences + self.snapshots)
            self._device.copy(view.part(source * size, size), view.part(target * size, size))

    def _alloc(self, nbytes: int) -> View:
        buffer = self._pool.alloc(nbytes)
        self._buffers.append(buffer)
        return View(buffer, 0, nbytes)

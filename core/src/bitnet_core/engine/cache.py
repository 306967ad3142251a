"""The paged key/value cache on the device: one key and one value buffer per layer, and the block tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bitnet_core.hal.device import Buffer, Device, View
from bitnet_core.kernels.catalogue import KV_BLOCK, KV_TYPES, ceil_div, kv_row_bytes
from bitnet_core.model.config import ModelConfig
from bitnet_core.plan.pool import MemoryPool


def block_bytes(config: ModelConfig, kv_dtype: str) -> int:
    """Bytes of one block in one layer's key (or value) buffer."""
    return KV_BLOCK * config.n_kv_heads * kv_row_bytes(KV_TYPES.index(kv_dtype), config.head_dim)


class KVCache:
    """`blocks` blocks in every layer and tables for `sequences` lanes; a lane is a sequence's row of the tables."""

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
    ) -> None:
        self._device, self._pool = device, pool
        self.blocks, self.sequences = blocks, sequences
        self.max_blocks = ceil_div(context, KV_BLOCK)
        size = blocks * block_bytes(config, kv_dtype)
        self.nbytes = 2 * config.n_layers * size
        self._buffers: list[Buffer] = []
        self._rows = np.full((sequences, self.max_blocks), -1, np.int32)
        self._tables: list[list[int]] = [[] for _ in range(sequences)]
        try:
            self.keys = tuple(self._alloc(size) for _ in range(config.n_layers))
            self.values = tuple(self._alloc(size) for _ in range(config.n_layers))
            self.tables = self._alloc(self._rows.nbytes)
            device.upload(self.tables, self._rows.data.cast("B"))
        except BaseException:
            self.free()
            raise

    def set_table(self, lane: int, blocks: list[int]) -> None:
        """Make `blocks` the table of a lane; uploads only if it differs."""
        if self._tables[lane] == blocks:
            return
        self._tables[lane] = list(blocks)
        row = self._rows[lane]
        row[: len(blocks)] = blocks
        row[len(blocks) :] = -1
        self._pool.upload(self.tables.part(lane * row.nbytes, row.nbytes), row.data.cast("B"))

    def slots(self, lanes: npt.NDArray[np.int64], positions: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """i32[n] cache slots of positions of lanes; -1 where the block is not there."""
        blocks = self._rows[lanes, positions // KV_BLOCK]
        return np.where(blocks >= 0, blocks * KV_BLOCK + positions % KV_BLOCK, -1).astype(np.int32)

    def free(self) -> None:
        """Give all buffers back to the pool."""
        for buffer in self._buffers:
            self._pool.free(buffer)
        self._buffers.clear()

    def _alloc(self, nbytes: int) -> View:
        buffer = self._pool.alloc(nbytes)
        self._buffers.append(buffer)
        return View(buffer, 0, nbytes)

"""The KV cache of a device: paged keys and values, block tables, states of delta nets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from bitnet_hal.device import Buffer, Device, View
from bitnet_hal.kernels.catalogue import KV_BLOCK, KV_TYPES, kv_row_bytes
from bitnet_hal.rounding import ceil_div

from bitnet_core.model.config import DeltaNet, ModelConfig
from bitnet_core.plan.pool import MemoryPool, pooled


def block_bytes(config: ModelConfig, kv_cache_type: str) -> int:
    """Return the bytes of one block in one layer's key (or value) buffer."""
    return KV_BLOCK * config.n_kv_heads * kv_row_bytes(KV_TYPES.index(kv_cache_type), config.head_dim)


def cache_bytes(config: ModelConfig, kv_cache_type: str, blocks: int, states: int) -> int:
    """Return the bytes of a cache without its block tables. states: number of delta net states."""
    keys_values = 2 * config.cached_layers * pooled(blocks * block_bytes(config, kv_cache_type))
    if config.delta is None:
        return keys_values
    nets = config.n_layers - config.attention_layers
    return keys_values + nets * sum(pooled(4 * states * size) for size in config.delta.state_sizes)


class KVCache:
    """A paged cache: `blocks` blocks in every attention layer and `sequences` rows of block tables, one per request
    (its req_index). Every delta net has a state per row, `checkpoints` more, and in separate buffers `spares` for the
    duration of a step. others: the caches of the model's other layers, on other devices; they get the same tables and
    copies of states."""

    def __init__(
        self,
        device: Device,
        pool: MemoryPool,
        config: ModelConfig,
        *,
        kv_cache_type: str,
        blocks: int,
        sequences: int,
        context: int,
        checkpoints: int = 0,
        spares: int = 0,
        others: tuple[KVCache, ...] = (),
    ) -> None:
        self.others = others
        self.device = device
        self._pool = pool
        self.blocks = blocks
        self.sequences = sequences
        self.checkpoints = checkpoints
        self.spares = spares
        self._state_rows = sequences + checkpoints
        self.max_blocks = ceil_div(context, KV_BLOCK)
        size = blocks * block_bytes(config, kv_cache_type)
        layers = config.cached_layers
        self.nbytes = cache_bytes(config, kv_cache_type, blocks, self._state_rows + spares)
        self._buffers: list[Buffer] = []
        net = config.delta
        self._rows = np.full((sequences, self.max_blocks), -1, np.int32)
        self._tables: list[list[int]] = [[] for _ in range(sequences)]
        self.changed_tables: set[int] = set()  # table rows that are not uploaded yet
        self._views: dict[tuple[int, int], View] = {}  # of adjacent tables, by the first row and the one after the last
        try:
            self.keys = tuple(self._alloc(size) for _ in range(layers))
            self.values = tuple(self._alloc(size) for _ in range(layers))
            nets = config.n_layers - config.attention_layers if net else 0
            self.states = tuple(self._states(net, self._state_rows) for _ in range(nets)) if net else ()
            self.spare_states = tuple(self._states(net, spares) for _ in range(nets)) if net and spares else ()
            self.tables = self._alloc(self._rows.nbytes)
            device.upload(self.tables, self._rows.data.cast("B"))
        except BaseException:
            self.free()
            raise

    def set_table(self, req_index: int, blocks: list[int]) -> None:
        """Set the block table of a request, from the next `upload_tables` on."""
        if self._tables[req_index] == blocks:
            return
        self._tables[req_index] = list(blocks)
        row = self._rows[req_index]
        row[: len(blocks)] = blocks
        row[len(blocks) :] = -1
        self.changed_tables.add(req_index)
        for other in self.others:
            other.set_table(req_index, blocks)

    def blocks_of(self, req_index: int) -> Sequence[int]:
        """Return the block table of a request."""
        return self._tables[req_index]

    def upload_tables(self) -> None:
        """Upload changed tables, adjacent rows together; call it before queueing work that uses them."""
        while self.changed_tables:
            first = end = min(self.changed_tables)
            while end in self.changed_tables:
                end += 1
            rows = self._rows[first:end]
            view = self._views.get((first, end))
            if view is None:
                view = self._views[first, end] = self.tables.part(first * self._rows[0].nbytes, rows.nbytes)
            self.device.upload(view, rows.data.cast("B"))
            self._pool.moved_bytes += rows.nbytes
            self.changed_tables.difference_update(range(first, end))

    def slots(self, req_indices: npt.NDArray[np.int64], positions: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Map positions of requests to cache slots, i32[n]; -1 if the block is missing."""
        blocks = self._rows[req_indices, positions // KV_BLOCK]
        return np.where(blocks >= 0, blocks * KV_BLOCK + positions % KV_BLOCK, -1).astype(np.int32)

    def free(self) -> None:
        """Return all buffers to the memory pool."""
        for buffer in self._buffers:
            self._pool.free(buffer)
        self._buffers.clear()

    def _states(self, net: DeltaNet, rows: int) -> tuple[View, View]:
        """Allocate the states of one delta net: f32[rows, taps - 1, channels] and f32[rows, heads, key_dim, value_dim].
        Kernels zero them at position 0."""
        inputs, heads = net.state_sizes
        return self._alloc(4 * rows * inputs), self._alloc(4 * rows * heads)

    def states_of(self, row: int) -> list[View]:
        """Return the views of the states of all delta nets in one row."""
        return _row(self.states, row, self._state_rows)

    def copy_states(self, source: int, target: int) -> None:
        """Copy the states of all delta nets from one row to another."""
        for one, twin in zip(self.states_of(source), self.states_of(target), strict=True):
            self.device.copy(one, twin)
        for other in self.others:
            other.copy_states(source, target)

    def _alloc(self, nbytes: int) -> View:
        buffer = self._pool.alloc(nbytes)
        self._buffers.append(buffer)
        return View(buffer, 0, nbytes)


def _row(states: tuple[tuple[View, View], ...], row: int, rows: int) -> list[View]:
    """Return the views of one of `rows` rows of states."""
    found = []
    for view in (view for pair in states for view in pair):
        size = view.nbytes // rows
        found.append(view.part(row * size, size))
    return found

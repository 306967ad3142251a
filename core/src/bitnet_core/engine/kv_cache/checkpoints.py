"""State checkpoints: states of delta nets after full blocks, for later requests with the same prefix.

Keys and values are stored by position, so a prefix of them can be shared. A state summarises all tokens so far, so it
has to be copied at the positions at which later requests may begin (schedule.state_positions).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from bitnet_core.engine.kv_cache.block_pool import BlockPool
from bitnet_core.engine.kv_cache.cache import KVCache


class StateCheckpoints:
    """Checkpoints in the cache rows after those of requests, by the hash of their last block (block_pool.block_hashes).

    If no row is free, one whose block has been evicted is replaced first, then the least recently used one.
    """

    def __init__(self, cache: KVCache, blocks: BlockPool) -> None:
        self._cache = cache
        self._blocks = blocks
        self._free = list(range(cache.sequences, cache.sequences + cache.checkpoints))
        self._rows: OrderedDict[bytes, int] = OrderedDict()

    @property
    def capacity(self) -> int:
        """Largest number of checkpoints."""
        return self._cache.checkpoints

    @property
    def cached(self) -> list[tuple[bytes, int]]:
        """Block hash and cache row of every checkpoint that a request could begin with, least recently used first."""
        return [(block_hash, row) for block_hash, row in self._rows.items() if self._blocks.has(block_hash)]

    def longest(self, block_hashes: Sequence[bytes]) -> int:
        """Number of blocks from the start that the longest checkpoint covers; 0 if there is none."""
        return next((count for count in range(len(block_hashes), 0, -1) if block_hashes[count - 1] in self._rows), 0)

    def save(self, block_hash: bytes, req_index: int, replaced: bytes | None = None) -> None:
        """Copy the current states of a request, which has computed this block last. replaced: a checkpoint to drop, if
        it still exists."""
        if block_hash in self._rows or not self.capacity:
            return
        row = self._rows.pop(replaced, None) if replaced else None
        if row is None:
            row = self._free.pop() if self._free else self._evict()
        self._cache.copy_states(req_index, row)
        self._rows[block_hash] = row

    def restore(self, block_hash: bytes, req_index: int) -> None:
        """Start a request from the checkpoint after this block, which must exist."""
        self._rows.move_to_end(block_hash)
        self._cache.copy_states(self._rows[block_hash], req_index)

    def allocate_for(self, block_hash: bytes) -> int | None:
        """Return a free row for the states after this block; None if they have a checkpoint or no row is free. The
        caller writes the states and calls `register`."""
        return None if block_hash in self._rows or not self._free else self._free.pop()

    def register(self, block_hash: bytes, row: int) -> None:
        """Make the states in a row of `allocate_for` available to requests."""
        self._rows[block_hash] = row

    def _evict(self) -> int:
        oldest = next(iter(self._rows))
        return self._rows.pop(next((known for known in self._rows if not self._blocks.has(known)), oldest))

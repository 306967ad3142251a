"""State checkpoints: states of delta nets after full blocks, for later requests with the same prefix.

Keys and values of a prefix can be shared because they are stored by position; a state summarises all tokens so far, so
it is copied at positions at which later requests may begin (schedule.state_positions).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from bitnet_core.engine.kv_cache.block_pool import BlockPool
from bitnet_core.engine.kv_cache.cache import KVCache


class StateCheckpoints:
    """Checkpoints in the cache rows after those of requests, by the hash of their last block (block_pool.block_hashes).

    If all rows are used, one whose block has left the cache is replaced first, then the least recently used one.
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
        """Copy the states of a request as they are after this block. replaced: the checkpoint to give up, if it is
        still there."""
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
        """Return a free row for the states after this block; None if they are known or no row is free. The caller
        writes the states and calls `register`."""
        return None if block_hash in self._rows or not self._free else self._free.pop()

    def register(self, block_hash: bytes, row: int) -> None:
        """Offer the states in a row of `allocate_for` to requests."""
        self._rows[block_hash] = row

    def _evict(self) -> int:
        oldest = next(iter(self._rows))
        return self._rows.pop(next((known for known in self._rows if not self._blocks.has(known)), oldest))

"""State checkpoints: states of delta nets after full blocks, for later requests with the same prefix.

Keys and values of a prefix can be shared because they are stored by position; a state summarises all tokens so far. It
is copied at the end of the prompt's last full block: whatever comes after that point may differ in the conversation's
next turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from bitnet_core.engine.kv_cache.cache import KVCache


class StateCheckpoints:
    """Checkpoints in the cache rows after those of requests, by the hash of their last block (block_pool.hash_blocks);
    the least recently used one is replaced first."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._free = list(range(cache.sequences, cache.sequences + cache.checkpoints))
        self._indices: OrderedDict[bytes, int] = OrderedDict()

    def longest(self, block_hashes: Sequence[bytes]) -> int:
        """Number of blocks from the start that the longest checkpoint covers; 0 if there is none."""
        return next((count for count in range(len(block_hashes), 0, -1) if block_hashes[count - 1] in self._indices), 0)

    def save(self, block_hash: bytes, req_index: int) -> None:
        """Copy the states of a request as they are after this block."""
        if block_hash in self._indices or not self._cache.checkpoints:
            return
        place = self._free.pop() if self._free else self._indices.popitem(last=False)[1]
        self._cache.copy_states(req_index, place)
        self._indices[block_hash] = place

    def restore(self, block_hash: bytes, req_index: int) -> None:
        """Start a request from the checkpoint after this block, which must exist."""
        self._indices.move_to_end(block_hash)
        self._cache.copy_states(self._indices[block_hash], req_index)

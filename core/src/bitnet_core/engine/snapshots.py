"""States of delta nets as they were after full blocks of a text, for later texts that begin with these blocks.

Keys and values of a prefix can be shared because they stand apart by position; a state is of a whole text. So it is
copied where a prompt's last full block ends: what follows there, the rest of the prompt and the answer, is what a later
turn of a conversation may have otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from bitnet_core.engine.cache import KVCache


class Snapshots:
    """In the lanes of a cache behind those of its sequences, by the digest of the last block (blocks.chain_digests);
    the one that was not used for longest goes first."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._free = list(range(cache.sequences, cache.sequences + cache.snapshots))
        self._lanes: OrderedDict[bytes, int] = OrderedDict()

    def covered(self, digests: Sequence[bytes]) -> int:
        """How many blocks from the start the longest snapshot stands for; 0 where there is none."""
        return next((count for count in range(len(digests), 0, -1) if digests[count - 1] in self._lanes), 0)

    def keep(self, digest: bytes, lane: int) -> None:
        """Copy the states of a sequence's lane, which are those after the block."""
        if digest in self._lanes or not self._cache.snapshots:
            return
        place = self._free.pop() if self._free else self._lanes.popitem(last=False)[1]
        self._cache.copy_states(lane, place)
        self._lanes[digest] = place

    def restore(self, digest: bytes, lane: int) -> None:
        """Begin in a lane after a block that is `covered`."""
        self._lanes.move_to_end(digest)
        self._cache.copy_states(self._lanes[digest], lane)

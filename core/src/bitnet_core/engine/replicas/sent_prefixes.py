"""The prefixes that are probably in the prefix cache of a device."""

from __future__ import annotations

from collections import OrderedDict

from bitnet_core.engine.kv_cache.block_pool import block_hashes
from bitnet_core.engine.request.request import Request


class SentPrefixes:
    """The block hashes of the requests sent to a device, at most as many as its cache has blocks, the latest last."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._hashes: OrderedDict[bytes, None] = OrderedDict()

    def add(self, request: Request) -> None:
        """Add the full blocks of a request, and drop the least recently used ones."""
        hashes = block_hashes(request, len(request.tokens))
        for block in reversed(hashes):  # the first blocks last, as later blocks are useless without them
            self._hashes[block] = None
            self._hashes.move_to_end(block)
        while len(self._hashes) > self._blocks:
            self._hashes.popitem(last=False)

    def count(self, request: Request) -> int:
        """Return the length of the longest run of known blocks from the start of a request."""
        found = 0
        for block in block_hashes(request, len(request.tokens) - 1):
            if block not in self._hashes:
                break
            found += 1
        return found

"""The beginnings of texts that a device has probably in its prefix cache."""

from __future__ import annotations

from collections import OrderedDict

from bitnet_core.engine.kv_cache.block_pool import block_hashes
from bitnet_core.engine.request.request import Request


class SentPrefixes:
    """The block hashes of the texts that were sent to a device, as many as its cache has blocks, the newest last."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._hashes: OrderedDict[bytes, None] = OrderedDict()

    def add(self, request: Request) -> None:
        """Add the full blocks of a request; the device keeps those that were used last."""
        hashes = block_hashes(request, len(request.tokens))
        for block in reversed(hashes):  # a beginning without its end is of use, an end alone is not
            self._hashes[block] = None
            self._hashes.move_to_end(block)
        while len(self._hashes) > self._blocks:
            self._hashes.popitem(last=False)

    def count(self, request: Request) -> int:
        """Return the number of the first blocks of a request that are kept."""
        found = 0
        for block in block_hashes(request, len(request.tokens) - 1):
            if block not in self._hashes:
                break
            found += 1
        return found

"""Ownership of the blocks of the paged cache, and reuse of full blocks by later requests.

Block tables and sharing by content follow PagedAttention (Kwon et al. 2023): a full block is identified by the hash of
its tokens and all tokens before it, so equal hashes mean equal keys and values.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from bitnet_hal.kernels.catalogue import KV_BLOCK

from bitnet_core.engine.request.request import Request
from bitnet_core.options.engine import Eviction


def block_hashes(request: Request, upto: int) -> list[bytes]:
    """Return the hashes of the full blocks within the first `upto` tokens of a request, each of a block and all tokens
    before it."""
    count = upto // KV_BLOCK
    if len(request.block_hashes) < count:
        known = request.block_hashes.copy()  # other threads may read the list
        rest = request.tokens[len(known) * KV_BLOCK : count * KV_BLOCK]
        data = struct.pack(f"<{len(rest)}i", *rest)
        for start in range(0, len(data), 4 * KV_BLOCK):
            block = data[start : start + 4 * KV_BLOCK]
            known.append(hashlib.sha256((known[-1] if known else b"") + block).digest())
        request.block_hashes = known
    return request.block_hashes[:count]


@dataclass(slots=True)
class _Shared:
    """A full block that later requests may reuse."""

    block_hash: bytes
    registered: int
    used: int
    uses: int = 0


class BlockPool:
    """Blocks 0..total - 1, each free, owned by requests, or cached for reuse until the eviction policy takes it."""

    def __init__(self, total: int, eviction: Eviction = "lru") -> None:
        self.total = total
        self.eviction = eviction
        self.evictions = 0
        self._free = list(range(total - 1, -1, -1))
        self._owners: dict[int, int] = {}
        self._shared: dict[int, _Shared] = {}
        self._by_hash: dict[bytes, int] = {}
        self._free_queue: list[tuple[tuple[int, int], int]] = []  # heap of (priority, block); entries may be stale
        self._clock = 0

    @property
    def available(self) -> int:
        """Number of blocks that `allocate` can still return."""
        return self.total - len(self._owners)

    @property
    def owned(self) -> int:
        """Number of blocks that requests own."""
        return len(self._owners)

    @property
    def shared(self) -> int:
        """Number of blocks that hold a cached prefix."""
        return len(self._shared)

    def has(self, block_hash: bytes) -> bool:
        """Return True if a block with this content can be reused."""
        return block_hash in self._by_hash

    def get_cached(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Own and return the longest run of cached blocks from the start."""
        found = []
        for block_hash in block_hashes:
            block = self._by_hash.get(block_hash)
            if block is None:
                break
            found.append(block)
        for block in found:
            self._owners[block] = self._owners.get(block, 0) + 1
            self._touch(self._shared[block])
        return found

    def count_cached(self, block_hashes: Sequence[bytes]) -> int:
        """Return the length of the longest run of cached blocks from the start; any thread may ask."""
        return next((at for at, found in enumerate(block_hashes) if found not in self._by_hash), len(block_hashes))

    def allocate(self) -> int | None:
        """Own a free block, evicting a cached one if need be; None if all are owned."""
        if not self._free and not self._evict():
            return None
        block = self._free.pop()
        self._owners[block] = 1
        return block

    def allocate_for(self, block_hash: bytes) -> int | None:
        """Own a free block for the content with this hash; None if it is cached already or no block is free."""
        if block_hash in self._by_hash or not self._free:
            return None
        return self.allocate()

    @property
    def cached(self) -> list[tuple[bytes, int]]:
        """Hash and number of every full block, prefixes first."""
        return [
            (shared.block_hash, block) for block, shared in sorted(self._shared.items(), key=lambda p: p[1].registered)
        ]

    def register(self, block: int, block_hash: bytes) -> None:
        """Offer an owned, full block to later requests."""
        if block not in self._shared and block_hash not in self._by_hash:
            self._clock += 1
            self._shared[block] = _Shared(block_hash, self._clock, self._clock)
            self._by_hash[block_hash] = block

    def release(self, blocks: Sequence[int]) -> None:
        """End one ownership of each block."""
        for block in blocks:
            self._owners[block] -= 1
            if not self._owners[block]:
                del self._owners[block]
                if shared := self._shared.get(block):
                    heappush(self._free_queue, (self._priority(shared), block))
                else:
                    self._free.append(block)
        if len(self._free_queue) > 2 * self.total:
            self._free_queue = [entry for entry in set(self._free_queue) if self._is_idle(*entry)]
            heapify(self._free_queue)

    def _touch(self, shared: _Shared) -> None:
        self._clock += 1
        shared.used = self._clock
        shared.uses += 1

    def _priority(self, shared: _Shared) -> tuple[int, int]:
        """Eviction priority: the lowest is evicted first."""
        if self.eviction == "fifo":
            return shared.registered, 0
        return (shared.uses, shared.used) if self.eviction == "lfu" else (shared.used, 0)

    def _is_idle(self, priority: tuple[int, int], block: int) -> bool:
        """Return True if the heap entry is not stale: the block has no owner and has not been used since."""
        shared = self._shared.get(block)
        return shared is not None and block not in self._owners and self._priority(shared) == priority

    def _evict(self) -> bool:
        while self._free_queue:
            priority, block = heappop(self._free_queue)
            if self._is_idle(priority, block):
                del self._by_hash[self._shared.pop(block).block_hash]
                self._free.append(block)
                self.evictions += 1
                return True
        return False

"""Who owns which block of the paged cache, and which full blocks a new sequence may share.

Block tables and sharing by content follow PagedAttention (Kwon et al. 2023): a full block is known by the digest of its
tokens and of all tokens before it, so equal digests mean equal keys and values.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

from bitnet_hal.kernels.catalogue import KV_BLOCK

Eviction = Literal["lru", "fifo", "lfu"]


def chain_digests(tokens: Sequence[int], known: Sequence[bytes] = ()) -> list[bytes]:
    """Digest of every full block of `tokens`; the first len(known) are taken as they are."""
    digests = list(known)
    rest = tokens[len(digests) * KV_BLOCK : len(tokens) // KV_BLOCK * KV_BLOCK]
    data = struct.pack(f"<{len(rest)}i", *rest)
    for start in range(0, len(data), 4 * KV_BLOCK):
        block = data[start : start + 4 * KV_BLOCK]
        digests.append(hashlib.sha256((digests[-1] if digests else b"") + block).digest())
    return digests


@dataclass(slots=True)
class _Shared:
    """A full block that later sequences may use."""

    digest: bytes
    registered: int
    used: int
    uses: int = 0


class BlockPool:
    """Blocks 0..total - 1, each free, owned by sequences, or kept for reuse until the eviction policy takes it."""

    def __init__(self, total: int, eviction: Eviction = "lru") -> None:
        self.total, self.eviction = total, eviction
        self.evictions = 0
        self._free = list(range(total - 1, -1, -1))
        self._owners: dict[int, int] = {}
        self._shared: dict[int, _Shared] = {}
        self._by_digest: dict[bytes, int] = {}
        self._idle: list[tuple[tuple[int, int], int]] = []  # a heap of worth and block, also of what is no longer so
        self._clock = 0

    @property
    def available(self) -> int:
        """Blocks that `take` can give."""
        return self.total - len(self._owners)

    @property
    def owned(self) -> int:
        """Blocks that sequences own."""
        return len(self._owners)

    @property
    def reusable(self) -> int:
        """Blocks that no sequence owns but that hold a prefix."""
        return sum(block not in self._owners for block in self._shared)

    def match(self, digests: Sequence[bytes]) -> list[int]:
        """Own and return the longest run of known blocks from the start."""
        found = []
        for digest in digests:
            block = self._by_digest.get(digest)
            if block is None:
                break
            found.append(block)
        for block in found:
            self._owners[block] = self._owners.get(block, 0) + 1
            self._touch(self._shared[block])
        return found

    def take(self) -> int | None:
        """Own a free block, evicting a reusable one if need be; None if all have owners."""
        if not self._free and not self._evict():
            return None
        block = self._free.pop()
        self._owners[block] = 1
        return block

    def take_for(self, digest: bytes) -> int | None:
        """Own a block that nobody needs, for what `digest` stands for; None if that is known, or no block is free."""
        if digest in self._by_digest or not self._free:
            return None
        return self.take()

    @property
    def kept(self) -> list[tuple[bytes, int]]:
        """Digest and number of every full block, those that begin a text before those that go on with it."""
        return [(shared.digest, block) for block, shared in sorted(self._shared.items(), key=lambda p: p[1].registered)]

    def register(self, block: int, digest: bytes) -> None:
        """Offer an owned, full block to later sequences."""
        if block not in self._shared and digest not in self._by_digest:
            self._clock += 1
            self._shared[block] = _Shared(digest, self._clock, self._clock)
            self._by_digest[digest] = block

    def release(self, blocks: Sequence[int]) -> None:
        """End one ownership of each block."""
        for block in blocks:
            self._owners[block] -= 1
            if not self._owners[block]:
                del self._owners[block]
                if shared := self._shared.get(block):
                    heappush(self._idle, (self._worth(shared), block))
                else:
                    self._free.append(block)
        if len(self._idle) > 2 * self.total:
            self._idle = [entry for entry in set(self._idle) if self._is_idle(*entry)]
            heapify(self._idle)

    def _touch(self, shared: _Shared) -> None:
        self._clock += 1
        shared.used = self._clock
        shared.uses += 1

    def _worth(self, shared: _Shared) -> tuple[int, int]:
        """The lowest goes first."""
        if self.eviction == "fifo":
            return shared.registered, 0
        return (shared.uses, shared.used) if self.eviction == "lfu" else (shared.used, 0)

    def _is_idle(self, worth: tuple[int, int], block: int) -> bool:
        """Still: nobody owns the block, and nobody has used it since."""
        shared = self._shared.get(block)
        return shared is not None and block not in self._owners and self._worth(shared) == worth

    def _evict(self) -> bool:
        while self._idle:
            worth, block = heappop(self._idle)
            if self._is_idle(worth, block):
                del self._by_digest[self._shared.pop(block).digest]
                self._free.append(block)
                self.evictions += 1
                return True
        return False

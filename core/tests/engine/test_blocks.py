"""Ownership, sharing and eviction of cache blocks."""

from __future__ import annotations

import pytest
from bitnet_core.engine.blocks import BlockPool, chain_digests


def filled(pool: BlockPool, *names: str) -> dict[str, int]:
    """Register one idle block under each name's digest, in order."""
    blocks = {}
    for name in names:
        block = pool.take()
        assert block is not None
        pool.register(block, name.encode())
        pool.release([block])
        blocks[name] = block
    return blocks


def test_digests_depend_on_everything_before() -> None:
    a, b = chain_digests(range(200)), chain_digests([1, *range(1, 200)])
    assert len(a) == 3
    assert a[2] != b[2]
    assert chain_digests(range(128)) == a[:2]
    assert chain_digests(range(200), a[:1]) == a


def test_blocks_run_out_and_come_back() -> None:
    pool = BlockPool(3)
    taken = [pool.take() for _ in range(3)]
    assert sorted(b for b in taken if b is not None) == [0, 1, 2]
    assert pool.take() is None
    pool.release([1])
    assert pool.available == 1
    assert pool.take() == 1


def test_shared_blocks_belong_to_all_owners() -> None:
    pool = BlockPool(2)
    block = pool.take()
    assert block is not None
    pool.register(block, b"x")
    assert pool.match([b"x", b"y"]) == [block]
    pool.release([block])
    assert pool.available == 1
    pool.release([block])
    assert (pool.available, pool.reusable) == (2, 1)
    assert pool.match([b"x"]) == [block]


def test_a_match_stops_at_the_first_gap() -> None:
    pool = BlockPool(3)
    filled(pool, "a", "c")
    assert len(pool.match([b"a", b"b", b"c"])) == 1


@pytest.mark.parametrize(
    ("eviction", "victim"),
    [("lru", "b"), ("fifo", "a"), ("lfu", "c")],
)
def test_eviction(eviction: str, victim: str) -> None:
    """a: oldest, used twice; b: used twice, longest ago; c: youngest, used once, last of all."""
    pool = BlockPool(3, eviction)  # type: ignore[arg-type]
    blocks = filled(pool, "a", "b", "c")
    for name in ("b", "b", "a", "a", "c"):
        pool.release(pool.match([name.encode()]))
    assert pool.take() == blocks[victim]
    assert pool.evictions == 1
    assert pool.match([victim.encode()]) == []

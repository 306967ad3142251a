"""Later requests begin at states of delta nets that earlier ones kept, and their texts are those of a new engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bitnet_core.engine.cache_file import MAGIC, load_state, save_state
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.kv_cache.block_pool import BlockPool
from bitnet_core.engine.kv_cache.checkpoints import StateCheckpoints
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.schedule import state_positions
from bitnet_core.errors import ModelError
from bitnet_core.formats.open import open_model
from bitnet_core.options.engine import EngineOptions
from bitnet_hal.reference.device import NumpyDevice

FILE = Path(__file__).parents[2] / "golden" / "bonsai2" / "rotated-PTQ1_0.gguf"
FIRST = [7 * n % 300 for n in range(180)]
QUESTION = [11 * n % 300 for n in range(50)]


def make(**options: Any) -> Engine:
    return Engine(open_model(FILE), NumpyDevice(), EngineOptions(**{"max_sequences": 2} | options))


def said(engine: Engine, prompt: list[int], tokens: int = 6, **rest: Any) -> Request:
    request = engine.add_request(prompt, max_tokens=tokens, **rest)
    while engine.step():
        pass
    return request


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = make()
    yield made
    made.close()


@pytest.fixture
def fresh() -> Iterator[Engine]:
    """An engine that has seen no text."""
    made = make()
    yield made
    made.close()


def test_a_turn_computes_what_is_new(engine: Engine, fresh: Engine) -> None:
    """It begins at the last full block of the answer before, also if the last message was edited."""
    answer = said(engine, FIRST, 14).generated
    second = [*FIRST, *answer, *QUESTION]
    edited = [*FIRST, *answer, *QUESTION[::-1]]
    found = [said(engine, prompt) for prompt in (second, edited)]
    assert [request.cached_tokens for request in found] == [192, 192]
    assert [request.generated for request in found] == [said(fresh, prompt).generated for prompt in (second, edited)]
    third = said(engine, [*second, *found[0].generated, *QUESTION])
    assert third.cached_tokens == 192


def test_a_turn_may_lack_the_answer_and_the_words_that_began_it(engine: Engine, fresh: Engine) -> None:
    """As with a template that drops what was thought: the checkpoint is before the prompt's last 16 tokens."""
    prompt = FIRST[:132]
    said(engine, prompt)
    second = [*prompt[:-5], *QUESTION]
    found = said(engine, second)
    assert found.cached_tokens == 64
    assert found.generated == said(fresh, second).generated


def test_a_single_checkpoint_is_that_of_the_prompt() -> None:
    engine = make(max_sequences=1, kv_cache_size=4 * open_model(FILE).config.state_bytes)
    assert engine.state_checkpoints.capacity == 1
    answer = said(engine, FIRST, 14).generated
    assert said(engine, [*FIRST, *answer, *QUESTION], 2).cached_tokens == 128
    engine.close()


@pytest.mark.parametrize(("capacity", "cached"), [(6, 192), (3, 128)])
def test_prompts_come_before_answers_if_many_requests_run(engine: Engine, capacity: int, cached: int) -> None:
    """Two requests: three checkpoints are too few for the prompts and the answers of both."""
    engine.cache().checkpoints = capacity
    requests = [engine.add_request([n, *FIRST], max_tokens=14) for n in range(2)]
    while engine.step():
        pass
    assert [said(engine, [*one.tokens, *QUESTION], 2).cached_tokens for one in requests] == [cached] * 2


def test_the_same_prompt_again(engine: Engine) -> None:
    for prompt, cached in ((FIRST, 128), ([*FIRST, *QUESTION], 192)):
        first = said(engine, prompt, 2)
        again = said(engine, prompt, 2)
        assert again.generated == first.generated
        assert again.cached_tokens == cached


def test_long_prompts_keep_states_on_their_way(monkeypatch: pytest.MonkeyPatch, fresh: Engine) -> None:
    monkeypatch.setattr(state_positions, "_SPACING", 128)
    engine = make(prefill_chunk=70)
    draft = [13 * n % 300 for n in range(400)]
    said(engine, draft, 2)
    edited = [*draft[:300], *QUESTION]
    found = said(engine, edited)
    assert found.cached_tokens == 256
    assert found.generated == said(fresh, edited).generated
    engine.close()


def test_a_stop_token_in_a_burst_leaves_no_states_of_later_rows(engine: Engine, fresh: Engine) -> None:
    """The burst before a block's end computes rows after the token that ends the text."""
    prompt = FIRST[:116]
    answer = said(fresh, prompt, 20).generated
    for stop in answer[9:12]:  # the block ends after 12 tokens
        ended = said(engine, prompt, 20, stop_token_ids=[stop])
        following = [*prompt, *ended.generated, *answer[:12], *QUESTION]
        assert said(engine, following, 4).generated == said(fresh, following, 4).generated


def test_states_go_to_a_file_and_come_back(engine: Engine, fresh: Engine, tmp_path: Path) -> None:
    path = tmp_path / "state"
    answer = said(engine, FIRST, 14).generated
    assert save_state(engine, path) == 3
    second = [*FIRST, *answer, *QUESTION]
    assert load_state(fresh, path) == 3
    assert load_state(fresh, path) == 0
    found = said(fresh, second)
    assert found.cached_tokens == 192
    assert found.generated == said(engine, second).generated
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"states": 2', b'"states": 9'))
    assert path.read_bytes().startswith(MAGIC)
    with pytest.raises(ModelError, match="truncated"):
        load_state(fresh, path)
    narrow = make(max_sequences=1, kv_cache_size=7 * fresh.config.state_bytes)
    assert narrow.state_checkpoints.capacity == 2
    said(narrow, QUESTION * 2)
    before = narrow.state_checkpoints.cached
    path.write_bytes(data)
    load_state(narrow, path)
    assert len(narrow.state_checkpoints.cached) == 2
    assert set(before) < set(narrow.state_checkpoints.cached)  # nothing was evicted
    narrow.close()


class Rows:
    """A cache of one request and two checkpoints that records copies of states."""

    sequences, checkpoints = 1, 2

    def __init__(self) -> None:
        self.copies: list[tuple[int, int]] = []

    def copy_states(self, source: int, target: int) -> None:
        self.copies.append((source, target))


def test_one_whose_block_is_gone_makes_room_first() -> None:
    blocks = BlockPool(4)
    for name in (b"a", b"b", b"c"):
        block = blocks.allocate()
        assert block is not None
        if name != b"b":
            blocks.register(block, name)
    rows: Any = Rows()
    kept = StateCheckpoints(rows, blocks)
    kept.save(b"a", 0)
    kept.save(b"b", 0)
    kept.save(b"c", 0)
    assert [block_hash for block_hash, _ in kept.cached] == [b"a", b"c"]
    kept.restore(b"a", 0)
    kept.save(b"d", 0)
    assert (kept.longest([b"a"]), kept.longest([b"c"])) == (1, 0)
    kept.save(b"e", 0, replaced=b"d")
    assert (kept.longest([b"a"]), kept.longest([b"d"]), kept.longest([b"x", b"e"])) == (1, 0, 2)
    assert len(rows.copies) == 6

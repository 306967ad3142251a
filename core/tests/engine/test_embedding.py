"""Embeddings: texts of unequal lengths in steps without padding, pooled as the model says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bitnet_core.api.embedding import embed, quantized, text_tokens
from bitnet_core.engine.embedding import groups
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.model.config import Pooling, PoolingMode
from bitnet_core.options.embedding import EmbedOptions
from bitnet_core.options.engine import EngineOptions
from bitnet_core.tokenizer import load_tokenizer
from bitnet_hal.errors import OutOfMemoryError, UsageError
from bitnet_hal.reference.device import NumpyDevice

LENGTHS = (5, 70, 1, 9, 9, 33, 100, 2)
TEXTS = [np.random.default_rng(n).integers(0, 512, n).tolist() for n in LENGTHS]


def engine_of(pooling: Pooling | None = None, **options: Any) -> Engine:
    source = SyntheticSource("embedding-tiny")
    source.config = replace(source.config, n_layers=1, pooling=pooling or Pooling("last"))
    return Engine(source, NumpyDevice(), EngineOptions(**options))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = engine_of(prefill_chunk=32, max_sequences=4)
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone() -> np.ndarray:
    """Return the rows of the texts one at a time."""
    made = engine_of()
    rows = np.concatenate([made.embed([text]) for text in TEXTS])
    made.close()
    return rows


def test_a_batch_gives_the_rows_of_each_text_alone(engine: Engine, alone: np.ndarray) -> None:
    np.testing.assert_allclose(engine.embed(TEXTS), alone, atol=1e-3)
    assert engine.block_pool.owned == 0


def test_every_row_of_a_step_is_a_token(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    runner = engine._ready()
    run = runner.hidden_step

    def counted(parts: Any, wanted: Any, chunk: int) -> Any:
        steps.append(sum(len(part.tokens) for part in parts))
        return run(parts, wanted, chunk)

    monkeypatch.setattr(runner, "hidden_step", counted)
    engine.embed(TEXTS)
    assert sum(steps) == sum(LENGTHS)
    assert len(steps) == -(-sum(LENGTHS) // 32)


def test_a_cache_that_holds_one_text_at_a_time_is_enough(alone: np.ndarray) -> None:
    engine = engine_of(prefill_chunk=64, max_sequences=3, context=128, kv_cache_size=200_000)
    assert engine.worker.blocks < len(TEXTS)
    np.testing.assert_allclose(engine.embed(TEXTS), alone, atol=1e-3)
    assert engine.block_pool.owned == 0
    engine.close()


def test_lack_of_memory_and_a_new_cache_leave_no_blocks_behind(
    alone: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(prefill_chunk=64, max_sequences=4)
    full, failures = Runner.hidden_step, iter([True, False, True, True])

    def flaky(runner: Runner, *arguments: Any) -> Any:
        if next(failures, False):
            raise OutOfMemoryError("full", requested=1)
        return full(runner, *arguments)

    monkeypatch.setattr(Runner, "hidden_step", flaky)
    before = engine.block_pool
    np.testing.assert_allclose(engine.embed(TEXTS), alone, atol=1e-3)
    assert engine.block_pool is not before
    assert engine.block_pool.owned == 0
    indices = engine.scheduler.admission._free_indices
    assert sorted(indices) == list(range(engine.sequences))
    engine.close()


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_other_poolings_take_other_rows(mode: PoolingMode, float64_model: Any) -> None:
    engine = engine_of(Pooling(mode), prefill_chunk=16)
    found = engine.embed(TEXTS[:4])
    double = float64_model(engine.source)
    for text, row in zip(TEXTS[:4], found, strict=True):
        hidden = double.hidden(np.array(text))
        wanted = hidden.mean(axis=0) if mode == "mean" else hidden[0]
        assert row @ wanted / np.linalg.norm(row) / np.linalg.norm(wanted) > 0.999
    engine.close()


def test_groups_of_texts_end_after_some_steps() -> None:
    found = list(groups([[0] * 100] * 7, 16))
    assert [part.stop - part.start for part in found] == [3, 3, 1]
    assert list(groups([], 16)) == []


def test_vectors_have_the_dimensions_and_the_length_that_were_asked_for(engine: Engine) -> None:
    tokenizer = load_tokenizer(engine.source.tokenizer)
    whole = embed(engine, tokenizer, TEXTS[:3], EmbedOptions())
    assert np.allclose(np.linalg.norm(whole, axis=1), 1)
    short = embed(engine, tokenizer, TEXTS[:3], EmbedOptions(dimensions=32))
    assert np.allclose(short, whole[:, :32] / np.linalg.norm(whole[:, :32], axis=1, keepdims=True), atol=1e-6)
    integers = embed(engine, tokenizer, TEXTS[:3], EmbedOptions(dtype="int8"))
    assert integers.dtype == np.int8
    assert (np.abs(integers).max(axis=1) == 127).all()
    cosine = (integers * whole).sum(axis=1) / np.linalg.norm(integers.astype(float), axis=1)
    assert (cosine > 0.9999).all()
    with pytest.raises(UsageError, match="dimensions must be from 1 to 256"):
        embed(engine, tokenizer, TEXTS[:1], EmbedOptions(dimensions=257))


def test_vectors_are_not_normalized_if_the_model_says_so() -> None:
    engine = engine_of(Pooling("last", normalize=False))
    tokenizer = load_tokenizer(engine.source.tokenizer)
    rows = embed(engine, tokenizer, TEXTS[:2], EmbedOptions())
    assert np.array_equal(rows, engine.embed(TEXTS[:2]))
    assert (np.linalg.norm(rows, axis=1) > 2).all()
    engine.close()


def test_zero_rows_stay_zero() -> None:
    assert not quantized(np.zeros((2, 4), np.float32)).any()


def test_long_texts_are_errors_or_cut_before_their_end_token(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(engine.source.tokenizer)
    tokenizer.text_end = (256,)
    assert text_tokens(engine, tokenizer, "th", truncate=False) == [257, 256]
    with pytest.raises(UsageError, match="has 301 tokens, and the context holds 256"):
        text_tokens(engine, tokenizer, "x" * 300, truncate=False)
    cut = text_tokens(engine, tokenizer, "x" * 300, truncate=True)
    assert (len(cut), cut[-1]) == (256, 256)
    monkeypatch.setattr(tokenizer, "encode", lambda text, **_: [len(text)])
    most = 256 * 4 * max(map(len, tokenizer.tokens))
    assert text_tokens(engine, tokenizer, "x" * (10 * most), truncate=True) == [most, 256]
    with pytest.raises(UsageError, match="a text to embed must not be empty"):
        text_tokens(engine, tokenizer, "", truncate=False)


def test_an_embedding_model_generates_nothing_and_others_embed_nothing(engine: Engine, make_engine: Any) -> None:
    with pytest.raises(UsageError, match="embeds texts and generates none"):
        engine.add_request([1, 2])
    with pytest.raises(UsageError, match="states no pooling"):
        make_engine().embed([[1]])
    with pytest.raises(UsageError, match="a text must have 1 to"):
        engine.embed([[]])
    with pytest.raises(UsageError, match="outside 0"):
        engine.embed([[512]])

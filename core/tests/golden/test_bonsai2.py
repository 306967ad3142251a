"""A tiny rotated hybrid (Bonsai 2's kind: gated delta nets, PTQ1_0 and PQ2_0, prism.hadamard) gives the logits that
transformers gives for its weights with the rotation undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import bitnet_core
import numpy as np
import numpy.typing as npt
import pytest
from bitnet_core.api import Model
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.run.batch import ScheduledTokens
from bitnet_core.engine.run.model_runner import Runner
from bitnet_core.formats.open import open_model
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_hal.errors import OutOfMemoryError, UnsupportedError, UsageError
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice

BONSAI2 = Path(__file__).parent / "bonsai2"
FILE = BONSAI2 / "rotated-PTQ1_0.gguf"

Rows = npt.NDArray[np.float32]


@pytest.fixture
def source() -> Iterator[ModelSource]:
    opened = open_model(FILE, strict=True)
    yield opened
    opened.close()


@pytest.fixture
def model() -> Iterator[Model]:
    with bitnet_core.load(FILE, "numpy") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    with np.load(BONSAI2 / "reference.npz") as archive:
        return dict(archive)


def both(reference: dict[str, Any], logits: Callable[[Any], Any]) -> Any:
    return np.concatenate([logits(reference[f"tokens_{run}"])[int(reference[f"first_{run}"]) :] for run in "ab"])


def expected(reference: dict[str, Any]) -> Rows:
    return np.concatenate([reference[f"logits_{run}"] for run in "ab"])


def test_what_the_file_says(source: ModelSource) -> None:
    config = source.config
    assert source.format == "GGUF v3, PTQ1_0 + PQ2_0"
    assert (config.arch, config.hadamard, config.rope_dim, config.head_dim) == ("qwen35", 128, 16, 64)
    assert config.activation_group_size == 128
    assert config.delta is not None
    assert (config.delta.key_heads, config.delta.value_heads, config.delta.regrouped) == (2, 6, True)
    assert [config.is_delta(layer) for layer in range(2)] == [True, False]
    assert config.state_bytes == 4 * (3 * 640 + 6 * 64 * 64)


def test_float_activations_give_the_logits_of_transformers(
    source: ModelSource, reference: dict[str, Any], float64_model: Any
) -> None:
    np.testing.assert_allclose(both(reference, float64_model(source).logits), expected(reference), atol=1e-3)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "no rotation": lambda config: replace(config, hadamard=0),
    "other blocks": lambda config: replace(config, hadamard=64),
    "heads not regrouped": lambda config: replace(config, delta=replace(config.delta, regrouped=False)),
    "all of a head turned": lambda config: replace(config, rope_dim=64),
    "no norm of heads": lambda config: replace(config, qk_norm=False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_comparison_notices(change: str, source: Any, reference: dict[str, Any], float64_model: Any) -> None:
    source._config = CHANGES[change](source.config)
    found = both(reference, float64_model(source).logits)
    assert np.abs(found - expected(reference)).max() > 0.1


@pytest.mark.parametrize("kv_cache_type", ["f16", "f32", "int8"])
def test_the_engine_stays_near(kv_cache_type: str, reference: dict[str, Any], float_model: ModuleType) -> None:
    with bitnet_core.load(FILE, "numpy", kv_cache_type=kv_cache_type) as model:
        found, wanted = both(reference, model.engine.logits), expected(reference)
    assert float_model.divergence(wanted, found).mean() <= 1e-2
    assert (found.argmax(axis=1) == wanted.argmax(axis=1)).mean() >= 0.9


@pytest.mark.parametrize("size", [32, 128])
def test_a_scale_of_128_columns_rounds_no_worse_than_it_may(
    size: Any, reference: dict[str, Any], float_model: ModuleType
) -> None:
    """It is the default because the rotation spreads outliers: less than 1e-3 nats a token, as with 32 columns."""
    with bitnet_core.load(FILE, "numpy", kv_cache_type="f32", activation_group_size=size) as model:
        found, wanted = both(reference, model.engine.logits), expected(reference)
    assert float_model.divergence(wanted, found).mean() <= 1e-3


@pytest.mark.parametrize("change", [{"hadamard": 0}, {"ternary_tables": False}], ids=["not rotated", "tables of f16"])
def test_its_relatives_run_too(
    change: dict[str, Any], source: Any, reference: dict[str, Any], float_model: ModuleType, float64_model: Any
) -> None:
    source._config = replace(source.config, **change)
    engine = Engine(source, NumpyDevice(), EngineOptions(max_sequences=1))
    found, wanted = (both(reference, model.logits) for model in (engine, float64_model(source)))
    engine.close()
    assert float_model.divergence(wanted, found).mean() <= 1e-2
    assert (found.argmax(axis=1) == wanted.argmax(axis=1)).mean() >= 0.9


def test_chunks_and_single_tokens_give_the_same_logits(
    model: Model, reference: dict[str, Any], float_model: ModuleType
) -> None:
    """But for int8 codes on a boundary, which the order of a sum moves."""
    tokens = reference["tokens_b"]
    at_once = model.engine.logits(tokens)
    for chunk in (32, 7, 1):
        found = model.engine.logits(tokens, chunk)
        assert float_model.divergence(at_once, found).max() <= 1e-3
        np.testing.assert_allclose(found, at_once, atol=0.2)


def prompts(reference: dict[str, Any]) -> list[list[int]]:
    return [reference["tokens_b"][start : start + 9 + start].tolist() for start in (0, 5, 30)]


def greedy(model: Model, prompt: list[int]) -> tuple[int, ...]:
    return model.generate(prompt, max_tokens=24, temperature=0).tokens


def test_texts_in_one_batch_are_what_they_are_alone(model: Model, reference: dict[str, Any]) -> None:
    alone = [greedy(model, prompt) for prompt in prompts(reference)]
    streams = [model.generate(prompt, max_tokens=24, temperature=0, stream=True) for prompt in prompts(reference)]
    for stream, tokens in zip(streams, alone, strict=True):
        for _ in stream:
            pass
        assert stream.result.tokens == tokens


def test_a_text_that_goes_on_begins_at_the_snapshot_of_the_one_before(model: Model) -> None:
    """Each turn begins where the last full block of the prompt before ended; other texts do not."""
    first = [7 * n % 300 for n in range(150)]
    answer = greedy(model, first)
    turns = [[*first, *answer, *range(n)] for n in (2, 70)]
    others = [[*first[:100], *range(60)], [*first[:130], 5, *first[130:]]]
    found = [greedy(model, prompt) for prompt in turns]
    assert model.engine.figures()["prefix_hits"] == 128 + 128
    found += [greedy(model, prompt) for prompt in others]
    assert model.engine.figures()["prefix_hits"] == 256 + 128
    for prompt, tokens in zip([*turns, *others], found, strict=True):
        with bitnet_core.load(FILE, "numpy") as fresh:
            logits = fresh.engine.logits([*prompt, *tokens])[len(prompt) - 1 : -1, : fresh.config.tokens]
        chosen = logits[np.arange(len(tokens)), list(tokens)]
        assert (logits.max(axis=1) - chosen).max() <= 0.2  # an int8 code on the boundary, moved by a sum's order


def test_a_prompt_of_whole_blocks_is_one_step_and_what_follows_begins_behind_it(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, counts = [11 * n % 300 for n in range(128)], []
    step = Runner.prompt_step

    def counted(self: Runner, scheduled: list[ScheduledTokens], *rest: Any) -> Any:
        counts.append([len(one.tokens) for one in scheduled])
        return step(self, scheduled, *rest)

    monkeypatch.setattr(Runner, "prompt_step", counted)
    hits = model.engine.figures()["prefix_hits"]
    answer = greedy(model, prompt)
    assert counts == [[128]]
    greedy(model, [*prompt, *answer, 5])
    assert model.engine.figures()["prefix_hits"] == hits + 128
    assert counts == [[128], [len(answer) + 1]]


def test_snapshots_make_room_for_newer_ones(model: Model) -> None:
    prompts_of_two_blocks = [[step * n % 300 for n in range(70)] for step in (7, 11, 13)]
    with bitnet_core.load(FILE, "numpy", max_sequences=1, kv_cache_size=6 * model.config.state_bytes) as narrow:
        assert narrow.engine.cache().checkpoints == 2
        for prompt in (*prompts_of_two_blocks, *prompts_of_two_blocks[::-1]):
            narrow.generate(prompt, max_tokens=2, temperature=0)
        assert narrow.engine.figures()["prefix_hits"] == 2 * 64
    with bitnet_core.load(FILE, "numpy", max_sequences=1, kv_cache_size=3 * model.config.state_bytes) as narrow:
        assert narrow.engine.cache().checkpoints == 0
        for _ in range(2):
            narrow.generate(prompts_of_two_blocks[0], max_tokens=2, temperature=0)
        assert narrow.engine.figures()["prefix_hits"] == 0


def test_more_texts_than_lanes_take_turns(reference: dict[str, Any], model: Model) -> None:
    alone = [greedy(model, prompt) for prompt in prompts(reference)]
    with bitnet_core.load(FILE, "numpy", max_sequences=2) as narrow:
        found = narrow.generate(prompts(reference), max_tokens=24, temperature=0)
    assert [one.tokens for one in found] == alone


def test_a_text_that_steps_back_says_the_same(model: Model) -> None:
    """Two texts of five blocks each in a cache of nine: one steps back, and goes on from a checkpoint."""
    long_prompts = [(np.arange(250) * step % 300).tolist() for step in (13, 51)]  # no answer of theirs is a near tie
    alone = [greedy(model, prompt) for prompt in long_prompts]
    with bitnet_core.load(FILE, "numpy", max_sequences=2) as narrow:
        narrow.engine.worker.drop_runner()
        narrow.engine.worker.blocks = 9
        found = narrow.generate(long_prompts, max_tokens=24, temperature=0)
        assert narrow.engine.figures()["preemptions"] > 0
    assert [one.tokens for one in found] == alone


def test_states_count_as_cache(source: ModelSource) -> None:
    engine = Engine(source, NumpyDevice(), EngineOptions(max_sequences=3))
    engine.logits([1, 2, 3])
    cache = engine.cache()
    assert engine.memory()["kv_cache_bytes"] == cache.nbytes
    assert cache.nbytes == sum(view.nbytes for view in (*cache.keys, *cache.values)) + 22 * source.config.state_bytes
    assert engine.memory_plan().kv_cache == cache.nbytes
    engine.close()


def test_states_take_half_of_the_budget_at_most(source: ModelSource) -> None:
    engine = Engine(
        source, NumpyDevice(), EngineOptions(max_sequences=32, kv_cache_size=10 * source.config.state_bytes)
    )
    assert (engine.sequences, engine.worker.checkpoints) == (1, 4)
    assert engine.worker.cache_bytes <= 10 * source.config.state_bytes
    engine.close()
    with pytest.raises(UsageError, match="the states of 1 requests"):
        Engine(source, NumpyDevice(), EngineOptions(kv_cache_size=source.config.state_bytes // 2))


def test_a_step_that_failed_is_no_part_of_the_text(
    source: ModelSource, reference: dict[str, Any], model: Model
) -> None:
    """States that it moved on are given up: the step after lack of memory begins the text again."""

    class Short(NumpyDevice):
        fails = 0

        def replay(self, recording: Any) -> None:
            super().replay(recording)
            self.fails += 1
            if self.fails == 5:
                raise OutOfMemoryError("no room", requested=1, free=0)

    prompt = prompts(reference)[1]
    engine = Engine(source, Short(), EngineOptions(max_sequences=1))
    request = engine.add_request(prompt, max_tokens=24)
    while engine.step():
        pass
    assert tuple(request.generated) == greedy(model, prompt)
    engine.close()


def test_a_device_without_the_kernels_is_refused_by_name(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = replace(numpy_info(), kernels=frozenset({"top_k"}))
    monkeypatch.setattr("bitnet_hal.reference.describe.numpy_info", lambda: bare)
    with pytest.raises(
        UnsupportedError, match=r"architecture qwen35: it lacks the kernels causal_conv1d, gated_delta_rule"
    ):
        Engine(source, NumpyDevice(), EngineOptions(max_sequences=1))

"""Streams, stop strings, scores and grammars with speculation are those without, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import bitnet_core
import pytest
from bitnet_core.engine.speculation.prompt_lookup import PromptLookup
from bitnet_core.engine.speculation.simulated import SimulatedDrafter
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.testing.drafts import draft_always, draft_never

PROMPT = [5, 6, 7, 8] * 4
TOKENS = 24


@pytest.fixture(scope="module")
def model() -> Iterator[bitnet_core.Model]:
    with bitnet_core.load(SyntheticSource("bonsai-tiny"), "numpy", deterministic=True, max_sequences=2) as loaded:
        yield loaded


def chunks(model: bitnet_core.Model, **options: Any) -> tuple[list[Any], Any]:
    stream = model.generate(PROMPT, max_tokens=TOKENS, stream=True, **options)
    return list(stream), stream.result


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 3, "logprobs": 3},
        {"temperature": 1.0, "seed": 3, "stop": 1},
        {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.3, "stop": 1, "logprobs": 1},
        {
            "temperature": 1.0,
            "seed": 4,
            "top_k": 200,
            "response_format": {"type": "regex", "regex": "[a-f]{3,9} [0-9]{4}!"},
        },
        {
            "temperature": 0.0,
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes", "no", "maybe"]}}},
        },
    ],
)
def test_streams_are_those_without(model: bitnet_core.Model, options: dict[str, Any]) -> None:
    """A stop of 1 stands for the last three characters of the text."""
    if "response_format" in options:
        pytest.importorskip("llguidance")
    draft_never(model.engine)
    if options.get("stop") == 1:
        text = chunks(model, **{**options, "stop": ()})[1].text
        options = {**options, "stop": text[-3:]}
    expected, result = chunks(model, **options)
    full = chunks(model, **{**options, "stop": ()})[1].tokens
    texts = {tuple(PROMPT): list(full)}
    draft_always(model.engine, SimulatedDrafter(PromptLookup(), texts, 0.8, model.config.tokens), 4)
    found, drafted = chunks(model, **options)
    assert found == expected
    assert (drafted.tokens, drafted.scores, drafted.finish_reason) == (
        result.tokens,
        result.scores,
        result.finish_reason,
    )
    assert drafted.draft_tokens >= drafted.accepted_tokens > 0
    assert result.draft_tokens == 0

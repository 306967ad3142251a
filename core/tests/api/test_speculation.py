"""Streams, stop strings, scores and grammars with speculation are those without, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import bitnet_core
import pytest
from bitnet_core.engine.request.request import Request
from bitnet_core.engine.speculation.prompt_lookup import PromptLookup
from bitnet_core.engine.speculation.simulated import SimulatedDrafter
from bitnet_core.formats.synthetic import SyntheticSource

PROMPT = [5, 6, 7, 8] * 4
TOKENS = 24


def limits(requests: list[Request], most: Mapping[Request, int], rows: int) -> dict[Request, int]:
    """Draft at every step, whatever it costs."""
    return {request: min(4, most[request]) for request in requests if most[request] > 0}


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
def test_streams_are_those_without(
    model: bitnet_core.Model, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop of 1 stands for the last three characters of the text."""
    if "response_format" in options:
        pytest.importorskip("llguidance")
    speculative = model.engine.scheduler.speculative
    speculative.use(None, 0)
    if options.get("stop") == 1:
        text = chunks(model, **{**options, "stop": ()})[1].text
        options = {**options, "stop": text[-3:]}
    expected, result = chunks(model, **options)
    full = chunks(model, **{**options, "stop": ()})[1].tokens
    texts = {tuple(PROMPT): list(full)}
    speculative.use(SimulatedDrafter(PromptLookup(), texts, 0.8, model.config.tokens), 8)
    monkeypatch.setattr(speculative.policy, "limits", limits)
    monkeypatch.setattr(speculative.policy, "until_next", lambda requests, rows: 0)
    found, drafted = chunks(model, **options)
    assert found == expected
    assert (drafted.tokens, drafted.scores, drafted.finish_reason) == (
        result.tokens,
        result.scores,
        result.finish_reason,
    )
    assert drafted.draft_tokens >= drafted.accepted_tokens > 0
    assert result.draft_tokens == 0

"""Draft models by name: loaded beside the model, or refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bitnet_core
import pytest
from bitnet_hal.errors import DeviceNotFoundError, UsageError

Bitnet = Callable[..., Any]
OPTIONS: dict[str, Any] = {"deterministic": True, "max_sequences": 2, "context": 128}


def test_a_text_with_a_draft_model_is_the_usual_one() -> None:
    prompt = "Once upon a time"
    with bitnet_core.load("stories", "numpy", speculate="off", **OPTIONS) as plain:
        expected = plain.generate(prompt, max_tokens=16, temperature=0.7, seed=1)
    with bitnet_core.load("stories", "numpy", draft_model="stories", draft_device="numpy:0", **OPTIONS) as model:
        found = model.generate(prompt, max_tokens=16, temperature=0.7, seed=1)
        stats = model.stats()["speculation"]
    assert found.tokens == expected.tokens
    assert stats["kind"] == "draft"
    assert (stats["draft_tokens"], stats["accepted_tokens"]) == (found.draft_tokens, found.accepted_tokens)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"draft_model": "synthetic:bonsai-tiny"}, "cannot draft for .*, because its vocabulary differs: it has 300"),
        ({"draft_model": "stories", "speculate": "off"}, 'a draft model is given, but speculate is "off"'),
        ({"draft_model": "stories", "speculate": "lookup"}, 'a draft model is given, but speculate is "lookup"'),
        ({"draft_model": "stories", "deterministic": False}, "was requested, but numpy:0 is not batch-invariant"),
        ({"draft_device": "numpy"}, "draft_device is given, but no draft_model"),
        ({"speculate": "draft"}, "there is no draft model: name one with draft_model"),
        ({"speculate": "often"}, "speculate must be one of off, auto, lookup, mtp, draft, not 'often'"),
        ({"draft_model": "synthetic:none"}, "synthetic"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        bitnet_core.load("stories", "numpy", **{**OPTIONS, **options})


def test_an_absent_draft_device_is_an_error() -> None:
    with pytest.raises(DeviceNotFoundError):
        bitnet_core.load("stories", "numpy", draft_model="stories", draft_device="numpy:7", **OPTIONS)


def test_the_command_line_names_it(bitnet: Bitnet) -> None:
    given = ("run", "-d", "numpy", "-n", "4", "--deterministic", "-q", "--seed", "1", "Once")
    plain = bitnet(*given)
    drafted = bitnet(*given, "-md", "stories", "--speculate", "draft")
    assert (drafted.code, drafted.out) == (0, plain.out)
    refused = bitnet(*given, "--draft-model", "synthetic:bonsai-tiny")
    assert refused.code == 2
    assert "its vocabulary differs" in refused.err

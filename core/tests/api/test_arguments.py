"""Every wrong argument is named by a UsageError, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bitnet_core
import pytest
from bitnet_hal.errors import UsageError


@pytest.fixture(scope="module")
def model() -> Iterator[bitnet_core.Model]:
    with bitnet_core.load(None, "numpy", context=64) as loaded:
        yield loaded


class Strange:
    """Fails wherever it is looked at."""

    def __iter__(self) -> Any:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        return "strange"


@pytest.mark.parametrize("value", ["x", "1", [], {}, object(), True, Strange()])
@pytest.mark.parametrize(
    "name",
    [
        *("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"),
        *("frequency_penalty", "logprobs", "seed"),
    ],
)
def test_options_of_generate(model: bitnet_core.Model, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"^{name} must be a"):
        model.generate("a", **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", 5),
        ("stop", None),
        ("stop", ["a", 5]),
        ("stop_token_ids", 5),
        ("stop_token_ids", "ab"),
        ("stop_token_ids", ["a"]),
        ("logit_bias", [1]),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {1: "a"}),
        ("response_format", "json"),
        ("progress", 5),
        ("stream", "yes"),
        ("max_tokens", None),
        ("max_tokens", 2.5),
    ],
)
def test_more_options_of_generate(model: bitnet_core.Model, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        model.generate("a", **{name: value})


def test_an_option_that_does_not_exist(model: bitnet_core.Model) -> None:
    with pytest.raises(UsageError, match="no option 'max_token'"):
        model.generate("a", max_token=3)  # type: ignore[call-overload]


@pytest.mark.parametrize("prompt", [5, None, b"a", {"a": 1}, ["a", 5], [1, "a"], [1.5], [True], Strange(), iter([1])])
def test_prompts(model: bitnet_core.Model, prompt: Any) -> None:
    with pytest.raises(UsageError, match="prompt"):
        model.generate(prompt)


@pytest.mark.parametrize("messages", ["hello", 5, None, {"role": "user"}, ["hello"], [5], Strange()])
def test_messages(model: bitnet_core.Model, messages: Any) -> None:
    with pytest.raises(UsageError, match="messages"):
        model.chat(messages)


@pytest.mark.parametrize(
    ("name", "value"), [("reasoning_budget", "x"), ("tools", "x"), ("tools", [5]), ("max_tokens", "x")]
)
def test_options_of_chat(model: bitnet_core.Model, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        model.chat([{"role": "user", "content": "a"}], **{name: value})


@pytest.mark.parametrize(
    "message", [{}, {"role": "user"}, {"content": "a"}, {"role": 5, "content": "a"}, {"role": "user", "content": 5}]
)
def test_messages_without_their_parts(model: bitnet_core.Model, message: Any) -> None:
    with pytest.raises(UsageError, match="messages"):
        model.chat([message], max_tokens=1)


def test_logits_and_perplexity(model: bitnet_core.Model) -> None:
    for tokens in ("abc", 5, [1.5], None, [True]):
        with pytest.raises(UsageError, match="tokens"):
            model.logits(tokens)  # type: ignore[arg-type]
    for text in (5, None, [0.5]):
        with pytest.raises(UsageError, match="text"):
            model.perplexity(text)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="stride"):
        model.perplexity("a b c", stride="x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="path"):
        model.save_state(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"model": 5}, "model"),
        ({"model": b"x"}, "model"),
        ({"device": 5}, "device"),
        ({"kv_cache_type": 5}, "kv_cache_type"),
        ({"context": "x"}, "context"),
        ({"kv_cache_size": "4G"}, "kv_cache_size"),
        ({"kv_cache_size": 0}, "kv_cache_size"),
        ({"max_sequences": 1.5}, "max_sequences"),
        ({"max_sequences": None}, "max_sequences"),
        ({"eviction": "random"}, "eviction"),
        ({"eviction": ["lru"]}, "eviction"),
        ({"stream_interval": "x"}, "stream_interval"),
        ({"lm_head_int8": 5}, "lm_head_int8"),
        ({"activation_group_size": "x"}, "activation_group_size"),
        ({"layout": 5}, "layout"),
        ({"mmap": "no"}, "mmap"),
        ({"fallback": 1}, "fallback"),
        ({"progress": 1}, "progress"),
        ({"pool": 1}, "pool"),
    ],
)
def test_load(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=name):
        bitnet_core.load(**{"device": "numpy", **arguments})


def test_a_closed_model_says_so_everywhere(tmp_path: Path) -> None:
    closed = bitnet_core.load(None, "numpy", context=64)
    closed.close()
    uses: tuple[Any, ...] = (
        lambda: closed.generate("a"),
        lambda: closed.generate(["a", "b"]),
        lambda: closed.chat([{"role": "user", "content": "a"}]),
        lambda: closed.logits([1]),
        lambda: closed.perplexity("a b"),
        closed.stats,
        closed.warmup,
        closed.profile,
        lambda: closed.agenerate("a"),
        lambda: closed.save_state(tmp_path / "state"),
        lambda: closed.load_state(tmp_path / "state"),
    )
    for use in uses:
        with pytest.raises(UsageError, match="closed"):
            use()

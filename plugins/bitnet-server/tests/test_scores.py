"""Scores of evaluation programs: the requests of lm-eval's gguf and remote-tokenizer backends, and the engine's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import bitnet_core
import httpx
import numpy as np
import pytest

PAIRS = [
    ("Once upon a", " time"),
    ("Once upon a time there was a girl named", " Lily"),
    ("Ein M\u00e4dchen", " gr\u00f6\u00dfe \u4f60\u597d \U0001f600"),
    ("One day, Lily", " went to the sea\nand sang"),
]


@pytest.fixture(scope="module")
def model() -> Iterator[bitnet_core.Model]:
    with bitnet_core.load(None, "numpy") as loaded:
        yield loaded


def likelihood(model: bitnet_core.Model, tokens: Sequence[int], begin: int) -> tuple[float, bool]:
    """The log-likelihood of tokens[begin:] after those before, and whether each is the likeliest."""
    logits = model.logits(tokens).astype(np.float64)[begin - 1 : -1]
    scores = logits - logits.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    own = scores[np.arange(len(scores)), tokens[begin:]]
    return float(own.sum()), bool((own == scores.max(axis=1)).all())


@pytest.mark.parametrize("pair", PAIRS)
def test_the_gguf_backend_reads_the_engine_s_likelihoods(
    client: httpx.Client, model: bitnet_core.Model, pair: tuple[str, str]
) -> None:
    """Its request, and its way to read the answer: the continuation begins where text_offset reaches the context."""
    context, continuation = pair
    fields = {"logprobs": 10, "temperature": 0.0, "max_tokens": 1, "echo": True}
    answer = client.post("/v1/completions", json={"prompt": context + continuation, **fields}).json()
    scores = answer["choices"][0]["logprobs"]
    begin = next(at for at, offset in enumerate(scores["text_offset"]) if offset >= len(context))
    greedy = [
        max(top, key=top.__getitem__) == token
        for token, top in zip(scores["tokens"][begin:], scores["top_logprobs"][begin:], strict=True)
    ]
    tokens = model.tokenizer.encode(context + continuation, add_bos=True)
    assert len(scores["tokens"]) == len(tokens) + 1
    total, best = likelihood(model, tokens, begin)
    assert sum(scores["token_logprobs"][begin:-1]) == pytest.approx(total, abs=1e-3)
    assert all(greedy) == best


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_the_remote_tokenizer_backend_reads_the_engine_s_likelihoods(
    client: httpx.Client, model: bitnet_core.Model, max_tokens: int
) -> None:
    """The tokens come from /tokenize, and several prompts of tokens are scored in one request."""

    def encoded(text: str) -> list[int]:
        answer = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
        return [int(token) for token in answer["tokens"]]

    info = client.get("/tokenizer_info").json()
    begin = encoded(info["bos_token"])
    assert begin == [model.tokenizer.bos_id]
    assert len(encoded(info["eos_token"])) == 1
    contexts = [begin + encoded(context) for context, _ in PAIRS]
    prompts = [before + encoded(after) for before, (_, after) in zip(contexts, PAIRS, strict=True)]
    fields = {"model": "stories", "temperature": 0, "max_tokens": max_tokens, "logprobs": 1, "seed": 1234, "echo": True}
    choices = client.post("/v1/completions", json={"prompt": prompts, **fields}).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(PAIRS)))
    for choice, tokens, context in zip(choices, prompts, contexts, strict=True):
        total, best = likelihood(model, tokens, len(context))
        scores, end = choice["logprobs"], len(tokens)
        assert len(scores["token_logprobs"]) == len(scores["top_logprobs"]) == end + max_tokens
        own, top = scores["token_logprobs"][len(context) : end], scores["top_logprobs"][len(context) : end]
        assert sum(own) == pytest.approx(total, abs=1e-3)
        assert all(one == max(most.values()) for one, most in zip(own, top, strict=True)) == best
    text: Any = client.post("/detokenize", json={"tokens": prompts[2]}).json()["prompt"]
    assert text.endswith("".join(PAIRS[2]))

"""Fields of requests that are declared as sampling options."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bitnet_core.engine.sampling.defaults import SamplingDefaults
from bitnet_core.options.fields import options_of
from bitnet_core.options.sampling import SamplingParams
from bitnet_server.chat import plain_messages
from bitnet_server.errors import ApiError
from bitnet_server.page import contents
from bitnet_server.request_builder import sampling_of
from bitnet_server.schema import NUMBERS, ChatRequest, CompletionRequest, parse


def request(**fields: Any) -> CompletionRequest:
    return parse(json.dumps({"prompt": "x", **fields}).encode(), CompletionRequest)


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_of_sampling_is_a_field_with_its_range(name: str) -> None:
    own = options_of(SamplingParams)[name].option
    value = 1 if own.at_most is None or own.at_most >= 1 else own.at_most
    params = sampling_of(request(**{name: value}), SamplingDefaults(), seed=1, logprobs=None)
    assert getattr(params, name) == value
    for wrong in ("x", -1e9, 1e30 if own.at_most is not None else "y"):
        with pytest.raises(ApiError) as caught:
            request(**{name: wrong})
        assert caught.value.param == name


def test_an_alias_names_the_same_option() -> None:
    params = sampling_of(request(repeat_penalty=1.5), SamplingDefaults(), seed=1, logprobs=None)
    assert params.repetition_penalty == 1.5
    both = request(repeat_penalty=1.5, repetition_penalty=1.25)
    assert sampling_of(both, SamplingDefaults(), seed=1, logprobs=None).repetition_penalty == 1.25


def test_openai_ranges_hold() -> None:
    assert sampling_of(request(top_k=-1), SamplingDefaults(), seed=1, logprobs=None).top_k == 0
    with pytest.raises(ApiError):
        request(temperature=2.1)


def test_the_page_offers_every_number() -> None:
    rows = json.loads(contents()["options.json"])
    assert {row["name"] for row in rows} == {*NUMBERS, "max_tokens"}
    top_p = next(row for row in rows if row["name"] == "top_p")
    assert (top_p["label"], top_p["min"], top_p["max"], top_p["step"]) == ("Top p", 0, 1, 0.01)
    assert all(row["help"].endswith(".") and row["min"] is not None for row in rows)


def test_text_of_other_apis_and_older_names_is_read() -> None:
    parts = [{"type": kind, "text": kind[0]} for kind in ("text", "input_text", "output_text")]
    messages = [{"role": "user", "content": parts}, {"role": "function", "name": "f", "content": "found"}]
    body = b"\xef\xbb\xbf" + json.dumps({"messages": messages}).encode()  # as some clients begin UTF-8
    plain = plain_messages(parse(body, ChatRequest).messages)
    assert plain == [{"role": "user", "content": "tio"}, {"role": "tool", "content": "found"}]

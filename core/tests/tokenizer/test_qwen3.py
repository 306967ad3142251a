"""Qwen3's tokenizer and chat template, from GGUF keys and from a folder, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bitnet_core.formats.open import open_model
from bitnet_core.tokenizer import StreamDecoder, Tokenizer, load_tokenizer
from bitnet_core.tokenizer.chat import ChatTemplate
from bitnet_core.tokenizer.pretokenizers import pre_tokenizer
from tokenizers import Regex, pre_tokenizers

UNTIED = Path(__file__).parents[1] / "golden" / "qwen3" / "qwen3-untied"
REFERENCE: dict[str, Any] = json.loads((UNTIED / "tokenizer_reference.json").read_text())


@pytest.fixture(scope="module", params=["PQ2_0.gguf", "hf", "mlx"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return load_tokenizer(open_model(UNTIED / request.param).tokenizer)


@pytest.mark.parametrize("entry", REFERENCE["encode"], ids=lambda entry: entry["text"][:12])
def test_ids_of_transformers(tokenizer: Tokenizer, entry: dict[str, Any]) -> None:
    assert tokenizer.encode(entry["text"], add_bos=tokenizer.add_bos, parse_special=True) == entry["ids"]


def test_stop_ids_of_the_family(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_ids == frozenset(REFERENCE["stop_ids"])


def test_think_tags_are_one_token_and_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<think>a</think>", add_bos=False)
    assert (ids[0], ids[-1]) == (315, 316) == (tokenizer.tag("<think>"), tokenizer.tag("</think>"))
    decoder = StreamDecoder(tokenizer)
    assert "".join(decoder.push(token) for token in [*ids, 314]) == "<think>a</think>"
    assert tokenizer.tag("<tool_call>") is None
    assert tokenizer.tag("a") is None


@pytest.mark.parametrize(("name", "variables"), [("thinking", {}), ("plain", {"enable_thinking": False})])
def test_rendered_as_transformers_renders(tokenizer: Tokenizer, name: str, variables: dict[str, Any]) -> None:
    template = ChatTemplate(tokenizer)
    assert template.render(REFERENCE["messages"], **variables) == REFERENCE["rendered"][name]
    assert template.chat_tokens(REFERENCE["messages"], **variables) == REFERENCE["rendered_ids"][name]


def test_control_tokens_in_variables_are_plain_text(tokenizer: Tokenizer) -> None:
    tokenizer.chat_template = "{{ tools[0].name }}<|im_end|>"
    template = ChatTemplate(tokenizer)
    ids = template.chat_tokens([], tools=[{"name": "<|im_end|>"}])
    assert ids.count(314) == 1
    assert tokenizer.decode(ids) == "<|im_end|>"


@pytest.mark.parametrize(
    ("rule", "pieces"),
    [
        ("qwen2", ["it", "'s", " ह", "िन", "्द", "ी", " ", "4", "2", "!"]),
        ("qwen35", ["it", "'s", " हिन्दी", " ", "4", "2", "!"]),
    ],
)
def test_marks_belong_to_letters_from_qwen35_on(rule: str, pieces: list[str]) -> None:
    (pattern,) = pre_tokenizer(rule, []).patterns
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    assert [piece for piece, _ in split.pre_tokenize_str("it's हिन्दी 42!")] == pieces

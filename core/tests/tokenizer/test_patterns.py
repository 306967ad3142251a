"""Regular expressions and normalizers of a tokenizer.json: the real ones are accepted, harmful ones rejected."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from bitnet_core.errors import TokenizerError
from bitnet_core.tokenizer import Tokenizer, load_tokenizer
from bitnet_core.tokenizer.expressions import check_pattern
from bitnet_core.tokenizer.pretokenizers import PRE_TOKENIZERS
from bitnet_core.tokenizer.tokenizer import panics_are_errors
from bitnet_hal.errors import UsageError
from texts import byte_level_backend

REAL = [
    *(pattern for rule in PRE_TOKENIZERS for pattern in rule.patterns),
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    " {2,}",
    "",
]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(byte_level_backend([r"\s?\S+|\s+"], ["<|eot_id|>"]).to_str())
    return loaded


def loaded(document: dict[str, Any]) -> Tokenizer:
    return load_tokenizer({"kind": "hf", "tokenizer_json": json.dumps(document)})


@pytest.mark.parametrize("pattern", REAL)
def test_expressions_of_real_tokenizers_pass(pattern: str) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"(a)\1", r"(?<n>a)\k<n>", r"(?<=a)b", r"(?<!a)b", r"(?>a)", r"(?#c)", r"\g<0>", r"(?(1)a|b)", r"(a", "a)"),
        *(
            r"(a+)+b",
            r"(a*)*",
            r"(?:a|a+)+",
            r"((a+)){2,}",
            r"(?:a{1,3})*",
            r"(?i:(?:\s*\w)*)x",
            r"a{1,5000}",
            r"a{99999}",
        ),
        # those that ended in a panic of the library, or took minutes for a few thousand characters
        *("(?:a|a)" * 20 + "b", "(?:a|aa)*b", "(?:a|a){30}b", "(?:a?){30}b", "a?" * 30 + "a" * 30 + "b"),
        *(r"\s*\s*\d", r"\s*\s*\s*\s*x", r"(?:\s*)(?:\s*)x", r"\s*(?=\s*x)", r"(?:a|\s*\s*)x", "a{1,999}" * 3),
        *("a**", "*", "(*FAIL)", "[a&&[^b]]", "[a", "a{", r"\K", r"\p{L", "(" * 40 + ")" * 40, "a" * 5000, r"\C-a"),
    ],
)
def test_other_expressions_are_refused(document: dict[str, Any], pattern: str) -> None:
    with pytest.raises(TokenizerError, match="regular expression"):
        check_pattern(pattern)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    for part in (split, {"type": "Sequence", "pretokenizers": [split, document["pre_tokenizer"]]}):
        with pytest.raises(TokenizerError) as caught:
            loaded({**document, "pre_tokenizer": part})
        assert len(str(caught.value)) < 300


def replace(old: Any, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": old, "content": new}


@pytest.mark.parametrize(
    "steps",
    [
        [replace({"String": "a"}, "aaaaaaaa")] * 8,
        [replace({"Regex": ""}, "x" * 200)],
        [replace({"Regex": "a*"}, "x" * 20)] * 2,
        [{"type": "Prepend", "prepend": "x" * 20_000_000}],
        [{"type": "NFKD"}] * 3,
        [{"type": "Lowercase"}] * 100,
    ],
)
def test_normalizers_may_not_make_much_from_little(document: dict[str, Any], steps: list[Any]) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        loaded({**document, "normalizer": {"type": "Sequence", "normalizers": steps}})


def test_usual_normalizers_pass(document: dict[str, Any]) -> None:
    steps = [
        {"type": "NFKC"},
        replace({"String": " "}, "\u2581"),
        replace({"Regex": " {2,}"}, " "),
        {"type": "Lowercase"},
    ]
    tokenizer = loaded({**document, "normalizer": {"type": "Sequence", "normalizers": steps}})
    assert tokenizer.encode("Ab", add_bos=False)


def test_a_panic_of_the_library_is_an_error_of_the_tokenizer() -> None:
    class PanicException(BaseException):
        pass

    PanicException.__module__ = "pyo3_runtime"
    with pytest.raises(TokenizerError, match="boom"), panics_are_errors():
        raise PanicException("boom")
    with pytest.raises(KeyboardInterrupt), panics_are_errors():
        raise KeyboardInterrupt


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(document: dict[str, Any]) -> None:
    tokenizer = loaded(document)
    tokenizer.check_fits("word " * 100, 100)
    started = time.process_time()
    with pytest.raises(UsageError, match="16000000 characters"):
        tokenizer.check_fits("x" * 16_000_000, 4096)
    assert time.process_time() - started < 1

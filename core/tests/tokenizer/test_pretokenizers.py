"""The splits of pre-tokenizers that few models use, on texts that show what is their own."""

from __future__ import annotations

import pytest
from bitnet_core.tokenizer.pretokenizers import PreTokenizer, pre_tokenizer
from tokenizers import Regex, pre_tokenizers

NUMBERS = "12345678 1234"
BLANKS = "b \t  c      d"


def pieces(rule: PreTokenizer, text: str) -> list[str]:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    return [piece for piece, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("glm4", NUMBERS, "123|456|78| |123|4"),
        ("tiny_aya", NUMBERS, "12|345|678| |1|234"),
        ("cohere2moe", "they'll DON'T", "they'll| DON'T"),
        ("afmoe", NUMBERS, "12|345|678| |1|234"),
        ("afmoe", "中文ab ภาษาc", "中文|ab| |ภาษา|c"),
        ("superbpe", NUMBERS, "12|345|678| |1|234"),
        ("superbpe", "Hello  world, they'll", "Hello  world, they'll"),
        ("youtu", NUMBERS, "1|2|3|4|5|6|7|8| |1|2|3|4"),
        ("youtu", "中文\uff0c한국어x they'll", "中文|\uff0c|한국어|x| they'll"),
        ("kimi-k2", "中文ab 中  文 한국어 they'll", "中文|ab| |中| | |文| 한국어| they'll"),
        ("kimi-k2", NUMBERS, "123|456|78| |123|4"),
        ("jais-2", BLANKS, "b| \t| | c|    | | d"),
        ("exaone-moe", "Hello world  a b1 they'll !/", "Hello world| | a b|1| they|'ll| !/"),
        ("exaone-moe", "e\u0301 x", "e\u0301 x"),
        ("laguna", "a \n\nb 12", "a| |\n\n|b| |1|2"),
        ("chameleon", "IMGIMGABZ <sentinel:3>\t\n12.", "IMGIMGABZ| |<|sentinel|:|3|>|\t|\n|1|2|."),
        ("granite-embed-multi-97m", "they'll 1234", "they'll| |123|4"),
        ("f2llmv2", "they'll 12", "they|'ll| |1|2"),
    ],
)
def test_the_split_of_a_rule(pre: str, text: str, expected: str) -> None:
    assert pieces(pre_tokenizer(pre, ()), text) == expected.split("|")


def test_flags_of_rules() -> None:
    names = ("youtu", "granite-embed-multi-97m", "kimi-k2")
    assert [pre_tokenizer(name, ()).ignore_merges for name in names] == [True, True, False]
    assert pre_tokenizer("chameleon", ()).add_bos
    assert not pre_tokenizer("glm4", ()).add_bos


@pytest.mark.parametrize("text", ["ab cd", "a  b", "a b\u0301 c", "ab c1 d", " a ", "a\nb c", "\u0301a b"])
def test_exaone_moe_s_expression_is_that_of_its_tokenizer_json(text: str) -> None:
    own = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    )
    assert pieces(pre_tokenizer("exaone-moe", ()), text) == pieces(PreTokenizer("own", (own,)), text)

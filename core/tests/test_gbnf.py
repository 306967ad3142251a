"""Grammars in the form of llama.cpp, GBNF."""

from __future__ import annotations

from collections.abc import Iterator

import bitnet_core
import pytest
from bitnet_core.structured import grammar_of
from bitnet_hal.errors import UsageError

LIST = r"""
# a list of items
root  ::= item+
item  ::= "- " [^\r\n\x0b\u2028-]+ "\n" |
          "* " .{2,3} "\n"
"""
ARITHMETIC = 'root ::= expr "=" ws term\nexpr ::= term ([-+*/] term)*\nterm ::= num | "(" ws expr ")" ws\n' + (
    "num ::= [0-9]+ ws\nws ::= [ \\t]*\n"
)
GREEDY = 'root ::= "a" my-tail | "ab"\nmy-tail ::= "bc"?'


@pytest.fixture(scope="module")
def model() -> Iterator[bitnet_core.Model]:
    with bitnet_core.load(None, "numpy") as loaded:
        yield loaded


def follows(model: bitnet_core.Model, text: str, output: str) -> bool:
    grammar = grammar_of({"type": "grammar", "grammar": text})
    assert grammar is not None
    constraint = model.grammars.constraint(grammar)
    (eos, *_) = model.tokenizer.eos_ids
    for token in [*model.tokenizer.encode(output, add_bos=False), eos]:
        if not int(constraint.mask().view("uint32")[token // 32]) >> token % 32 & 1:
            return False
        constraint.accept(token)
    return True


@pytest.mark.parametrize(
    ("grammar", "output", "good"),
    [
        (LIST, "- milk\n", True),
        (LIST, "- milk\n* abc\n", True),
        (LIST, "- milk", False),
        (LIST, "* abcd\n", False),
        (ARITHMETIC, "(1+2)*3= 9", True),
        (ARITHMETIC, "(1+2*3= 9", False),
        (GREEDY, "abc", True),
        (GREEDY, "ab", True),
        (GREEDY, "a", True),
        (GREEDY, "abcc", False),
    ],
)
def test_grammars_of_llama_cpp_are_followed(model: bitnet_core.Model, grammar: str, output: str, good: bool) -> None:
    assert follows(model, grammar, output) is good


@pytest.mark.parametrize(
    "grammar",
    [
        'item ::= "a"',
        "root ::= item",
        'root ::= "a',
        "root ::= []",
        "root ::= [z-a]",
        'root ::= "\\uD800"',
        "a root ::= b",
        'root ::= "a"\nroot ::= "b"',
    ],
)
def test_grammars_that_are_not_gbnf_are_refused(grammar: str) -> None:
    with pytest.raises(UsageError, match="the grammar"):
        grammar_of({"type": "grammar", "grammar": grammar})

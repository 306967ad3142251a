"""Each name that a kernel's contract uses is explained in words, on the page and by `bitnet kernels all`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec

PAGE = Path(__file__).parents[3] / "docs" / "backends" / "kernels.md"
NAME = re.compile(r"(?<![\w'])(?!NaN|Inf)([A-Z][A-Z0-9_]*|[a-z])(?![\w']|-[a-z])")
ARTICLE = re.compile(r"\b[Aa] (?=[`A-Za-z]{2})")


def explained(text: str) -> dict[str, str]:
    """Name -> its explanation, from the table under "Conventions"."""
    section = text.partition("## Conventions\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| (\w+) +\| (.+?) +\|$", section, re.MULTILINE))


def used(spec: KernelSpec) -> set[str]:
    """Names of one letter or in capitals in a kernel's meaning, shapes, parameters, constants and tuning."""
    words = [spec.meaning, *(b.shape for b in spec.bindings), *(p.meaning for p in spec.params)]
    text = ARTICLE.sub("", " ".join([*words, *spec.constants, *spec.tuning]))
    return {name for name in NAME.findall(text) if name != "A"}


def own(spec: KernelSpec) -> set[str]:
    """Names that the contract itself defines: buffers, parameters, `x = ...`, sum_x, [a | b], (a, b) -> ..."""
    text = spec.meaning
    defined = set(re.findall(r"\b(\w)(?:\[[^\]]*\])? =", text)) | set(re.findall(r"sum_(\w)", text))
    for group in re.findall(r"\[(\w \| [^\]]*)\]|\((\w(?:, \w)+)\) ->", text):
        defined |= set(re.findall(r"\w", "".join(group)))
    defined |= set(re.findall(r"\b\w+\((\w)\)(?:\[\w\])? =", text))
    defined |= set(re.findall(r"pair (\w) being", text))
    return defined | {b.name for b in spec.bindings} | {p.name for p in spec.params}


def test_names_are_found() -> None:
    spec = CATALOGUE["matmul_ternary_block"]
    assert {"BLOCK", "ABLOCK", "ADD", "TILE_N", "SPLITS", "N", "t", "n", "k"} <= used(spec)
    assert "a" in own(spec)


@pytest.mark.parametrize("spec", CATALOGUE.values(), ids=lambda spec: spec.name)
def test_each_name_of_a_contract_is_explained(spec: KernelSpec) -> None:
    names = explained(PAGE.read_text(encoding="utf-8"))
    missing = {name for name in used(spec) - own(spec) if len(re.findall(r"[a-z]{2,}", names.get(name, ""))) < 3}
    assert missing == set()


def test_the_command_explains_what_the_page_does(bitnet) -> None:
    out = bitnet("kernels", "all").out
    assert explained(out) == explained(PAGE.read_text(encoding="utf-8"))
    for word in ("step buffer", "byte address", "round_half_even", "bits 7-6", "NaN", "Masks"):
        assert word in out.partition("## embed_rows")[0]


def test_a_single_contract_says_how_to_see_the_conventions(bitnet) -> None:
    assert "`bitnet kernels all`" in bitnet("kernels", "attention").out

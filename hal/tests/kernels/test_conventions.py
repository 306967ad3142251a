"""The conventions explain in words each name that a kernel's contract uses."""

from __future__ import annotations

import re

import pytest
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.describe import describe_all
from bitnet_hal.kernels.spec import KernelSpec

NAME = re.compile(r"(?<![\w'])(?!NaN|Inf)([A-Z][A-Z0-9_]*|[a-z])(?![\w']|-[a-z])")
ARTICLE = re.compile(r"\b[Aa] (?=[`A-Za-z]{2})")


def explained(text: str) -> dict[str, str]:
    """Return the explanation of each name in the table under "Conventions"."""
    section = text.partition("## Conventions\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| (\w+) +\| (.+?) +\|$", section, re.MULTILINE))


def used(spec: KernelSpec) -> set[str]:
    """Return the names of one letter or in capitals in a kernel's meaning, shapes, parameters, constants and tuning."""
    words = [spec.meaning, *(b.shape for b in spec.bindings), *(p.meaning for p in spec.params)]
    text = ARTICLE.sub("", " ".join([*words, *spec.constants, *spec.tuning]))
    return {name for name in NAME.findall(text) if name != "A"}


def own(spec: KernelSpec) -> set[str]:
    """Return the names that the contract itself defines: buffers, parameters, `x = ...`, sum_x, [a | b], (a, b) ->
    ..."""
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
    names = explained(describe_all())
    missing = {name for name in used(spec) - own(spec) if len(re.findall(r"[a-z]{2,}", names.get(name, ""))) < 3}
    assert missing == set()


def test_the_layouts_are_explained() -> None:
    conventions = describe_all().partition("## embed_rows")[0]
    for word in ("step buffer", "byte address", "round_half_even", "bits 7-6", "NaN", "Masks"):
        assert word in conventions

"""Limits on the steps of a tokenizer.json, and on the growth of text in its normalizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bitnet_core.errors import TokenizerError
from bitnet_core.tokenizer.expressions import check_pattern

MAX_PATTERNS: Final = 64
MAX_GROWTH: Final = 128  # maximum characters to which normalizers may expand one
MAX_PREFIX: Final = 64  # characters of a Prepend

_GROWTH: Final = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3}
"""Maximum characters to which one is expanded, by the tables of Unicode."""


def check_pipeline(parts: Mapping[str, Any]) -> None:
    """Check every expression, and the growth of text in the normalizers.

    parts: normalizer, pre_tokenizer and decoder of a tokenizer.json. Raises TokenizerError.
    """
    found = {name: list(steps(part)) for name, part in parts.items()}
    if sum(map(len, found.values())) > MAX_PATTERNS:
        raise TokenizerError(
            f"tokenizer.json has more than {MAX_PATTERNS} steps of normalizing, splitting and decoding"
        )
    for step in [step for part in found.values() for step in part]:
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
            check_pattern(pattern["Regex"])
    growth = 1.0
    for step in found["normalizer"]:
        growth *= _growth(step)
    if growth > MAX_GROWTH:
        raise TokenizerError(
            f"the normalizers of tokenizer.json may turn one character into {growth:.0f}; the limit is {MAX_GROWTH}"
        )


def steps(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a part of the pipeline and all its components."""
    pending = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            yield part
            for name in ("decoders", "pretokenizers", "normalizers", "processors"):
                nested = part.get(name)
                pending.extend(nested if isinstance(nested, list) else [])


def _growth(step: Mapping[str, Any]) -> float:
    kind, pattern = step.get("type"), step.get("pattern")
    if kind == "Prepend" and len(str(step.get("prepend"))) > MAX_PREFIX:
        raise TokenizerError(f"tokenizer.json puts more than {MAX_PREFIX} characters in front of every text")
    if kind != "Replace":
        return _GROWTH.get(str(kind), 1)
    text = pattern.get("String") if isinstance(pattern, dict) else None
    made = len(str(step.get("content")))
    # an expression may match the empty text between all characters
    return max(1, made / max(1, len(text))) if isinstance(text, str) else 1 + made

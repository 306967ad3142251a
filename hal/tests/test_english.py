"""Docstrings and messages of the folders in CLEAN avoid the worst patterns of English (CONTRIBUTING has the rules)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLEAN = ("hal/src", "core/src", "plugins/*/src", "examples/*/src", "integrations/*/src")
"""Globs of folders from the root of the repository."""

FRAGMENT = re.compile(r"(What|Of|Whether|Where|How|Those|That) ")
"""First words of a docstring that is a clause or a fragment, not a sentence or a noun phrase."""
IS_NO = re.compile(r"(?<![Tt]here )\bis no (?!longer\b|more\b)")
"""In a message: "x is no number" for "x is not a number"."""
MIN_WORDS = 3
"""A docstring with fewer words repeats the name, unless it refers to another ("See Device.")."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def faults(source: str) -> Iterator[str]:
    """Yield "line: fault" for each bad docstring or message of a module."""
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        first = node.body[0] if isinstance(node, DOCUMENTED) and node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            text = first.value.value
            docstrings.add(first.value)
            if FRAGMENT.match(text):
                yield f"{first.lineno}: begins with a fragment: {text[:40]}"
            if len(text.split()) < MIN_WORDS and not text.startswith("See "):
                yield f"{first.lineno}: fewer than {MIN_WORDS} words: {text}"
    for node in ast.walk(tree):
        is_message = isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings
        if is_message and IS_NO.search(node.value):
            yield f"{node.lineno}: say 'is not a': {node.value[:60]}"


def modules() -> list[Path]:
    found: list[Path] = []
    for pattern in CLEAN:
        for place in ROOT.glob(pattern):
            found += [place] if place.is_file() else place.rglob("*.py")
    return sorted(set(found))


@pytest.mark.skipif(not (ROOT / "noxfile.py").exists(), reason="runs in a checkout of the repository")
def test_docstrings_and_messages_are_plain_english() -> None:
    assert len(modules()) > 40
    found = [
        f"{path.relative_to(ROOT)}:{fault}" for path in modules() for fault in faults(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""What a driver said."""', 1),
        ('def f():\n    """Of a block and its rows."""', 1),
        ('def f():\n    """Zeroed."""', 1),
        ("raise ValueError(f'{x} is no number')", 1),
        ("raise ValueError('there is no device 7')", 0),
        ("raise ValueError('it is no longer open')", 0),
        ('def f():\n    """Return the device\'s name."""', 0),
    ],
)
def test_the_patterns_are_found(source: str, count: int) -> None:
    assert len(list(faults(source))) == count

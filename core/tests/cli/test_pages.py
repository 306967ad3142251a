"""Every page reads whole in a plain checkout: nothing raw, nothing empty, and what it names exists."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from bitnet_hal.kernels.catalogue import CATALOGUE

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "core/*.md", "plugins/*/*.md", "integrations/*/*.md", "examples/*/*.md")
    for path in ROOT.glob(pattern)
)
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
NUMBERS += ("thirteen", "fourteen", "fifteen", "sixteen")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
FOLDERS = r"(?:core|plugins|docs|benchmarks|tests|src|examples|deploy|integrations)"


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def raw_marks(page: str) -> list[str]:
    """Marks of includes and of generators that a reader would see as they are."""
    return re.findall(r"--\s*8\s*<\s*--.*|\{%.*?%\}|<!-- include [^>]*-->\s*<!-- end -->", page, re.MULTILINE)


def empty_sections(page: str) -> list[str]:
    """Headings that a heading of the same or a higher level follows at once, or the end; empty blocks of code."""
    bare = FENCE.sub("code", page)
    lines = [line for line in bare.splitlines() if line.strip() and not line.startswith("<!--")]
    found = [
        line
        for line, following in zip(lines, [*lines[1:], "# end"], strict=True)
        if re.match(r"#+ ", line) and re.match(r"#+ ", following) and level(following) <= level(line)
    ]
    return found + re.findall(r"^```\w*[^\n]*\n\s*```$", page, re.MULTILINE)


def level(heading: str) -> int:
    return len(heading) - len(heading.lstrip("#"))


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_a_page_has_no_raw_marks_and_no_empty_sections(path: Path) -> None:
    page = text_of(path)
    assert raw_marks(page) == []
    assert empty_sections(page) == []


def test_raw_marks_and_empty_sections_are_seen() -> None:
    assert raw_marks('```python\n--8 < --"docs/x.py"\n```') == ['--8 < --"docs/x.py"']
    assert raw_marks('--8<-- "docs/x.py"')
    assert raw_marks("<!-- include docs/x.py -->\n<!-- end -->")
    assert empty_sections("# A\n\n## B\n\n## C\n\ntext") == ["## B"]
    assert empty_sections("# A\n\ntext\n\n## B\n<!-- end -->\n") == ["## B"]
    assert empty_sections("# A\n\n```python\n```\n") == ["```python\n```"]


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_the_files_that_a_page_names_exist(path: Path) -> None:
    """Relative to the root of the repository; pages of a package also relative to its own folder."""
    roots = [ROOT] if path.is_relative_to(ROOT / "docs") else [ROOT, path.parent]
    quoted = re.findall(r"`[^`\n]+`", FENCE.sub("", text_of(path)))
    files = [file for span in quoted for file in re.findall(rf"(?<![\w/.:-]){FOLDERS}/[\w./-]*\w", span)]
    made = {"examples/web-stories/model"}  # the command beside it writes it
    missing = [file for file in files if file not in made and not any((root / file).exists() for root in roots)]
    assert missing == [] or "CHANGELOG" in path.name  # what a release had may be gone


def test_the_number_of_kernels_that_a_backend_needs_is_told() -> None:
    base = sum(spec.base for spec in CATALOGUE.values())
    for page in ("docs/backends/index.md", "docs/decisions.md"):
        told = re.findall(r"a driver shim[^.|;]*?and (\w+) kernels", text_of(ROOT / page))
        assert told == [NUMBERS[base]], page


def test_backends_import_nothing_of_core() -> None:
    """But for the command of bitnet-webgpu that exports a model's step for a page."""
    for source in sorted(ROOT.glob("plugins/*/src")):
        plugin = source.parent.name
        if plugin != "bitnet-server":
            assert imported(source) == (
                {"api", "formats", "options", "tokenizer"} if plugin == "bitnet-webgpu" else set()
            ), plugin


def imported(source: Path) -> set[str]:
    """Folders and modules of core that a package's files import, below bitnet_core itself."""
    names = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bitnet_core."):
                names.add((node.module or "").split(".")[1])
    return names


def test_sessions_of_nox_that_pages_name_exist() -> None:
    """`nox -s NAME NAME`, or `nox -s "plugin(PROJECT)"`: with quotes, as a shell wants parentheses."""
    functions = [node for node in ast.parse(text_of(ROOT / "noxfile.py")).body if isinstance(node, ast.FunctionDef)]
    sessions = {f.name for f in functions if any("nox.session" in ast.unparse(d) for d in f.decorator_list)}
    projects = {path.parent.name for path in ROOT.glob("*/*/pyproject.toml")}
    named = [match for path in PAGES for match in re.findall(r"nox -s ([^`\n]+)", text_of(path))]
    assert len(named) > 5
    for words in named:
        for word in shlex.split(words.partition(" -- ")[0].partition(" && ")[0]):
            session, _, project = word.rstrip(")").partition("(")
            assert session in sessions, words
            assert not project or project in projects, words
    unquoted = [words for words in named if re.search(r"(?<![\"'\w])\w+\(", words)]
    assert unquoted == []


def test_rules_that_the_page_of_the_kit_names_exist() -> None:
    from bitnet_core.testing.model import ModelRules
    from bitnet_hal.testing import BackendConformance

    page = text_of(ROOT / "docs/backends/conformance.md")
    table = page[page.index("| name in the prototypes |") :].partition("\n\n")[0]
    rules = set(re.findall(r"`(test_\w+)`", table))
    assert len(rules) > 15
    assert {
        rule for rule in rules if not any(hasattr(kind, rule) for kind in (BackendConformance, ModelRules))
    } == set()
    names = [one for row in table.splitlines()[2:] for one in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert len(names) == len(set(names)) == 24

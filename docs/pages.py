"""Fill the generated parts of the pages, so that they can be read in a plain checkout: `python docs/pages.py`.

A block from `<!-- NAME -->` to `<!-- end -->` holds the output of NAME: `kernels`, `tolerances`, `matrix`, `models`,
`optional`, `features`; `python CLASS ...` or `flags CLASS ...` for a table of the options of dataclasses, by their
names in Python or on the command line; `keywords CLASS ...` for the keys of a TypedDict in
`core/src/bitnet_core/api/options.py`; or `include FILE[:SECTION]`. A section lies between the comments
`--8<-- [start:SECTION]` and
`--8<-- [end:SECTION]` of the file.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from bitnet_core.hub.families import families
from bitnet_hal.discovery.known import KNOWN
from bitnet_hal.features import FEATURES
from bitnet_hal.kernels.describe import describe_all, table
from bitnet_hal.testing.tolerances import TOLERANCES
from matrix import matrix
from optional import optional
from options import flag_table, keywords, python_table

ROOT = Path(__file__).parents[1]
_NAMES = (
    r"kernels|features|tolerances|matrix|models|optional|(?:python|flags|keywords)(?: \w+)+|include ([^ :]+)(?::(\w+))?"
)
_BLOCK = re.compile(rf"( *(?:# )?)<!-- ({_NAMES}) -->\n.*?<!-- end -->", re.DOTALL)
_TABLES = {"python": python_table, "flags": flag_table, "keywords": keywords}
_LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml"}


def filled(page: str) -> str:
    """A page with its generated parts as they should be."""
    return _BLOCK.sub(_fill, page)


def _fill(block: re.Match[str]) -> str:
    indent, name, file, section = block.groups()
    first, *classes = name.split()
    if file is not None:
        text = include(file, section)
    elif first in _TABLES:
        text = _TABLES[first](classes)
    else:
        text = _PARTS[name]()
    return f"{indent}<!-- {name} -->\n{text.rstrip()}\n{indent}<!-- end -->"


def include(file: str, section: str | None) -> str:
    """A file of the repository, or one section of it, as a block of code."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if section is not None:
        text = text.split(f"--8<-- [start:{section}]\n", 1)[1].split(f"--8<-- [end:{section}]", 1)[0]
        text = text.rpartition("\n")[0]
    lines = [line for line in text.splitlines() if "--8<--" not in line]
    code = textwrap.dedent("\n".join(lines)).strip("\n")
    return f'```{_LANGUAGES[Path(file).suffix]} title="{file}"\n{code}\n```'


def tolerances() -> str:
    """The table of the kit's tolerances."""
    head = ("kernel", "relative", "of the row's largest", "int8 codes")
    rows = [
        (f"`{name}`", *(f"{value:g}" if value else "exact" for value in (t.relative, t.scaled, t.codes)))
        for name, t in TOLERANCES.items()
    ]
    return table(head, *rows)


def features() -> str:
    """Return the table of features by backend, as the sources that describe its devices declare them."""
    columns = {name: _quoted(name) for name in KNOWN}
    rows = [(f"`{name}`", *("yes" if name in found else "" for found in columns.values())) for name in sorted(FEATURES)]
    return table(("feature", *(f"`{name}`" for name in columns)), *rows)


def _quoted(backend: str) -> set[str]:
    """Return the names in the module and the tables that describe a backend's devices."""
    package = KNOWN[backend].package
    folder = ROOT / "plugins" / package / "src" / package.replace("-", "_")
    if backend == "numpy":
        folder = ROOT / "hal" / "src" / "bitnet_hal" / "reference"
    files = [folder / name for name in ("describe.py", "devices.toml", "adapters.toml")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files if file.exists())
    return set(re.findall(r'"([a-z0-9_-]+)"', text)) | set(re.findall(r"^([a-z0-9_-]+) = ", text, re.MULTILINE))


def models() -> str:
    """The table of known models."""
    head = ("family", "sizes", "licence", "forms", "what bitnet does", "get and run", "tested with")
    rows = [
        (
            *(f"{f.name} ({f.publisher})", f.sizes, f.licence, f.forms, f.does),
            *(f"`{f.command}`" if f.command else "-", f.tested),
        )
        for f in families()
    ]
    return table(head, *rows)


_PARTS = {
    "features": features,
    "kernels": describe_all,
    "tolerances": tolerances,
    "matrix": matrix,
    "models": models,
    "optional": optional,
}


def main() -> None:
    """Rewrite the pages; with --check, only name those that are out of date."""
    stale = []
    for path in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "core/src/bitnet_core/api/options.py"]:
        page = path.read_text(encoding="utf-8")
        if filled(page) != page:
            stale.append(path.relative_to(ROOT).as_posix())
            if "--check" not in sys.argv:
                path.write_text(filled(page), encoding="utf-8")
    if "--check" in sys.argv and stale:
        sys.exit(f"run `python docs/pages.py`; out of date: {', '.join(stale)}")


if __name__ == "__main__":
    main()

"""Fills `<!-- kernels -->` and `<!-- tolerances -->` in the pages with what core's catalogue and kit say."""

from __future__ import annotations

import html
import inspect
import re
from typing import Any

from bitnet_core.kernels import catalogue
from bitnet_core.kernels.spec import KernelSpec
from bitnet_core.testing.tolerances import TOLERANCES
from mkdocs.exceptions import PluginError


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for every page."""
    if "<!-- conventions -->" in markdown:
        conventions = inspect.getdoc(catalogue) or ""
        markdown = markdown.replace("<!-- conventions -->", conventions.partition("\n\n")[2])
    if "<!-- kernels -->" in markdown:
        markdown = markdown.replace("<!-- kernels -->", "\n\n".join(map(kernel, catalogue.CATALOGUE.values())))
    if "<!-- tolerances -->" in markdown:
        markdown = markdown.replace("<!-- tolerances -->", tolerances())
    return markdown


def on_page_content(rendered: str, **_: Any) -> str:
    """Called with every page's HTML: an include that was not recognized must not pass for code."""
    if re.search(r"--\s*8\b", html.unescape(re.sub(r"<[^>]*>", "", rendered))):
        raise PluginError("a page still shows the mark of an include; check its code fence")
    return rendered


def table(*rows: tuple[str, ...]) -> str:
    """A Markdown table; the first row is its head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)


def kernel(spec: KernelSpec) -> str:
    """One kernel: meaning, bindings, parameters, constants."""
    bindings = [(str(i), f"`{b.name}`", b.dtype, b.access, html.escape(b.shape)) for i, b in enumerate(spec.bindings)]
    params = [(f"`{p.name}`", p.kind, p.meaning) for p in spec.params]
    constants = [f"`{name}` = {', '.join(map(str, values))}" for name, values in spec.constants.items()]
    constants += [f"`{name}` (tuning)" for name in spec.tuning]
    parts = [
        f"## {spec.name}",
        html.escape(spec.meaning) + ("" if spec.base else " **Optional.**"),
        table(("binding", "name", "type", "access", "shape"), *bindings),
        table(("parameter", "type", "meaning"), *params),
    ]
    if constants:
        parts.append("Constants: " + "; ".join(constants) + ".")
    return "\n\n".join(parts)


def tolerances() -> str:
    """The table of tolerances."""
    head = ("kernel", "relative", "of the row's largest", "int8 codes")
    rows = [
        (f"`{name}`", *(f"{value:g}" if value else "exact" for value in (t.relative, t.scaled, t.codes)))
        for name, t in TOLERANCES.items()
    ]
    return table(head, *rows)

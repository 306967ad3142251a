"""Draws docs/speed.svg from the tables in docs/benchmarks.md: `python docs/speed_chart.py`; `--check` only looks."""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
WIDTH, LEFT, RIGHT, BAR, STEP = 760, 285, 70, 18, 26
STYLE = """
text { font: 14px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.head { font-weight: 600 } .note { font-size: 12px; fill: #59636e }
.ours { fill: #3f51b5 } .peer { fill: #9aa4b2 } .paper { fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .note { fill: #9198a1 } .ours { fill: #8c9eff } .peer { fill: #59636e } .paper { fill: #0d1117 }
}
"""
Bars = list[tuple[str, float, bool]]
"""Label, tokens/s, whether it is ours."""


def panels(benchmarks: str) -> dict[str, Bars]:
    """Title -> bars, longest first."""
    cuda = _cells(benchmarks, "## CUDA", "128")
    public, fused = re.fullmatch(r"(\d+) \((\d+)\)", cuda[4]).groups()  # type: ignore[union-attr]  # fails loudly
    h200 = [
        ("bitnet, cuda", _number(cuda[3]), True),
        ("bitnet, opencl", _number(_cells(benchmarks, "## OpenCL", "128")[2]), True),
        ("bitnet, vulkan", _number(_cells(benchmarks, "## Vulkan", "128")[2]), True),
        ("public W2A8 design, fused in torch", float(fused), False),
        ("public W2A8 design, glue compiled", float(public), False),
    ]
    names = {
        "AMX, exact small head": "bitnet, cpu, exact small head",
        "AMX, f16 head": "bitnet, cpu, f16 head",
        "llama.cpp TQ2_0, q6_K head": "llama.cpp TQ2_0, q6_K head",
        "llama.cpp TQ2_0, f16 head": "llama.cpp TQ2_0, f16 head",
    }
    cpu = [
        (label, _number(_cells(benchmarks, "## bitnet-cpu", row)[1]), label.startswith("bitnet"))
        for row, label in names.items()
    ]
    return {"One NVIDIA H200": h200, "16 cores of a Xeon with AMX": cpu}


def _cells(benchmarks: str, section: str, first: str) -> list[str]:
    """The first table row of a section that begins with this cell."""
    text = benchmarks.split(section + "\n", 1)[1]
    row = re.search(rf"^\| {re.escape(first)} \|.*$", text, re.MULTILINE)
    if row is None:
        raise SystemExit(f"docs/benchmarks.md, {section}: there is no row '{first}'")
    return [cell.strip() for cell in row[0].strip("|").split("|")]


def _number(cell: str) -> float:
    return float(cell.replace(",", ""))


def chart(benchmarks: str) -> str:
    """The picture, as SVG that follows the reader's light or dark scheme."""
    y, parts = 24, []
    for title, bars in panels(benchmarks).items():
        parts.append(f'<text class="head" x="16" y="{y}">{escape(title)}</text>')
        longest = max(value for _, value, _ in bars)
        for label, value, ours in bars:
            y += STEP
            wide = value / longest * (WIDTH - LEFT - RIGHT)
            kind, shown = "ours" if ours else "peer", f"{value:,.0f}" if longest > 1000 else f"{value:.1f}"
            parts += [
                f'<text x="{LEFT - 10}" y="{y}" text-anchor="end">{escape(label)}</text>',
                f'<rect class="{kind}" x="{LEFT}" y="{y - 14}" width="{wide:.1f}" height="{BAR}" rx="2"/>',
                f'<text x="{LEFT + wide + 8:.1f}" y="{y}">{shown}</text>',
            ]
        y += 38
    note = "Tokens per second of one text, BitNet b1.58 2B-4T shape with random weights; each panel has its own scale."
    parts.append(f'<text class="note" x="16" y="{y - 6}">{note}</text>')
    size = f'width="{WIDTH}" height="{y + 8}" viewBox="0 0 {WIDTH} {y + 8}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="Decoding speed">'
    paper = '<rect class="paper" width="100%" height="100%" rx="6"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", paper, *parts, "</svg>"]) + "\n"


def main() -> None:
    """Write the picture, or say that it is out of date."""
    picture, path = chart((DOCS / "benchmarks.md").read_text(encoding="utf-8")), DOCS / "speed.svg"
    if "--check" not in sys.argv:
        path.write_text(picture, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != picture:
        sys.exit("docs/speed.svg is out of date: run `python docs/speed_chart.py`")


if __name__ == "__main__":
    main()

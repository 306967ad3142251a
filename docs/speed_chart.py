"""Draws docs/speed.svg from the tables in docs/benchmarks.md: `python docs/speed_chart.py`; `--check` only looks."""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
COLUMNS = (
    (
        "One NVIDIA H200: BitNet 2B-4T",
        "One NVIDIA H200: Bonsai 8B",
        "One NVIDIA H100: BitNet 2B-4T",
        "One NVIDIA H100: Bonsai 8B",
    ),
    (
        "One NVIDIA H100: Bonsai 27B",
        "Two cores of an AMD EPYC: Bonsai 1.7B",
        "Two cores of an AMD EPYC: BitNet 2B-4T",
        "16 cores of an Intel Xeon: BitNet 2B-4T",
    ),
)
"""Sections of the page, whose titles are those of the panels; a panel shows the first figures of its table."""
NOTES = (
    "Tokens per second, one text at a time, longer is better.",
    "Each panel has its own scale. Weights are random.",
    "int8 output head: candidates are computed again in f16,",
    "so the result is the f16 head's.",
)
WIDTH, LEFT, RIGHT, BAR, STEP, GAP, TOP = 456, 200, 56, 15, 22, 30, 24
"""Pixels: width of a column, room for labels and for figures, a bar, a line, space between panels, the first title."""
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.head { font-weight: 600 } .note { font-size: 12px; fill: #59636e }
.ours { fill: #3f51b5 } .peer { fill: #9aa4b2 } .paper { fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .note { fill: #9198a1 } .ours { fill: #8c9eff } .peer { fill: #59636e } .paper { fill: #0d1117 }
}
"""


def bars(page: str, title: str) -> list[tuple[str, str]]:
    """Return program and tokens per second of each row with a figure in a section's table of programs, fastest
    first."""
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    table = section.partition("\n| program |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([\d,.]+) \|", table, re.MULTILINE)
    if len(rows) < 2:
        raise SystemExit(f"docs/benchmarks.md has no table of figures under '{title}'")
    return sorted(rows, key=lambda row: -number(row[1]))


def number(figure: str) -> float:
    """A figure of the page, with commas between thousands."""
    return float(figure.replace(",", ""))


def panel(page: str, title: str, x: int, y: int) -> tuple[list[str], int]:
    """The SVG elements of one panel whose title stands at (x, y), and the y below it."""
    rows = bars(page, title)
    longest = number(rows[0][1])
    parts = [f'<text class="head" x="{x}" y="{y}">{escape(title)}</text>']
    for label, figure in rows:
        y += STEP
        wide = number(figure) / longest * (WIDTH - LEFT - RIGHT)
        kind = "ours" if label.startswith("bitnet ") else "peer"
        parts += [
            f'<text x="{x + LEFT - 8}" y="{y}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="{kind}" x="{x + LEFT}" y="{y - 12}" width="{wide:.1f}" height="{BAR}" rx="2"/>',
            f'<text x="{x + LEFT + wide + 6:.1f}" y="{y}">{figure}</text>',
        ]
    return parts, y + GAP


def chart(page: str) -> str:
    """The picture, as SVG that follows the reader's light or dark scheme."""
    parts, height = [], 0
    for number, titles in enumerate(COLUMNS):
        x, y = 16 + number * WIDTH, TOP
        for title in titles:
            drawn, y = panel(page, title, x, y)
            parts += drawn
        height = max(height, y - GAP + 14)
    for line, note in enumerate(NOTES):  # below the shorter column, the last
        parts.append(f'<text class="note" x="{x}" y="{y + 8 + 18 * line}">{escape(note)}</text>')
    size = (16 + len(COLUMNS) * WIDTH, max(height, y + 18 * len(NOTES)))
    box = f'width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="Decoding speed">'
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

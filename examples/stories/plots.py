"""The plots: each is a start, then one of its mishaps, one of the turns that fit it, and one of its ends.

They are in `plots/*.txt`, one template a line: `plot:` names the subject of the story, then come `start:`, `mishap`
with the numbers of the turns that may follow it, `turn:` and `end:`. Starts and ends fit everything.

Names in braces are slots that `generate.story` fills. The hero and the friend never share a pronoun, so "he" and "she"
are unambiguous; all others are named by their kind only.

Hero: {H} name, {hs} kind, {he} {him} {his} {self}. Friend: {F}, {fs}, {fhe} {fhim} {fhis}. Thing: {T} "red kite",
{thing} "kite", {aT} "a red kite" or "a pair of red boots", with {it} {them} {was} {is} in its number; another thing:
{T2}, {aT2}. Place: {P} "the river", {at} "by the river". Helper: {a_helper} "an owl" where it comes up first and
"the owl" later.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Plot(NamedTuple):
    """Templates; `fits[i]` holds the indices of the turns that may follow mishap i."""

    name: str
    start: tuple[str, ...]
    mishaps: tuple[str, ...]
    fits: tuple[str, ...]
    turns: tuple[str, ...]
    ends: tuple[str, ...]


def _plot(paragraph: str) -> Plot:
    lines = [line.partition(": ") for line in paragraph.splitlines()]

    def texts(key: str) -> tuple[str, ...]:
        return tuple(text for name, _, text in lines if name.split()[0] == key)

    fits = tuple(name.split()[1] for name, _, _ in lines if name.startswith("mishap"))
    return Plot(texts("plot")[0], texts("start"), texts("mishap"), fits, texts("turn"), texts("end"))


PLOTS = tuple(
    _plot(paragraph)
    for path in sorted(Path(__file__).with_name("plots").glob("*.txt"))
    for paragraph in path.read_text().strip().split("\n\n")
)

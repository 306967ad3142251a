"""Results of several lines: a heading, and details wrapped at the terminal's width, or unwrapped in a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitnet_core.cli.console import harmless
from bitnet_core.cli.standard_streams import result

if TYPE_CHECKING:
    from rich.text import Text

INDENT = 6


def print_block(head: Text | str, *details: Text | str) -> None:
    """Print one result on stdout. In a pipe each detail is a line of any length."""
    if not result().isatty():
        lines = [" " * INDENT + line for detail in details for line in str(detail).splitlines()]
        result().writelines(harmless(line).rstrip() + "\n" for line in (str(head), *lines))
        return
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False, file=result())
    console.print(Text(head) if isinstance(head, str) else head)
    for detail in details:
        console.print(Padding(Text(harmless(detail)) if isinstance(detail, str) else detail, (0, 0, 0, INDENT)))

"""Options of several commands that are not the model's, the engine's or sampling's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from bitnet_core.cli.console import be_quiet
from bitnet_core.cli.parameters import Given
from bitnet_core.options.fields import CACHE, DEVICE, MODEL, SAMPLING, option
from bitnet_core.options.sampling import SamplingParams

PROMPT, THINKING, OUTPUT = "Prompt", "Thinking", "Output"
GROUPS = (PROMPT, MODEL, SAMPLING, THINKING, DEVICE, CACHE, OUTPUT)
"""Groups of options in the help, in their order."""

THREADS_VARIABLE = "BITNET_NUM_THREADS"  # bitnet-cpu reads it


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The model, and the device that runs it."""

    model: str | None = option(
        None,
        flags=("--model", "-m"),
        metavar="FILE",
        group=MODEL,
        help="GGUF file, model folder or hf:OWNER/REPO[:FILE]. Default: the small model that comes with bitnet.",
    )
    device: str | None = option(
        None,
        flags=("--device", "-d"),
        metavar="DEVICE",
        group=DEVICE,
        help="auto, cpu, gpu, or a backend with or without an index (cuda:0); serve and bench also take a list "
        "(cuda:0,cuda:1,cpu) or all. Default: BITNET_DEVICE, then auto.",
    )
    threads: int | None = option(
        None,
        flags=("--threads", "-t"),
        at_least=1,
        at_most=1024,
        group=DEVICE,
        help=f"Threads of the cpu backend. Default: {THREADS_VARIABLE}, then the physical cores.",
    )


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The end of a text."""

    max_tokens: int = option(
        512,
        flags=("--max-tokens", "-n"),
        at_least=1,
        group=SAMPLING,
        help="Maximum tokens of a text or an answer; a line on stderr says if this limit ended it.",
    )
    stop: tuple[str, ...] = option((), metavar="TEXT", group=SAMPLING, help="Stop before this text; may be repeated.")


@dataclass(frozen=True, slots=True)
class ThinkingOptions:
    """The reasoning before an answer; the fields are parameters of `Model.chat`."""

    enable_thinking: bool | None = option(
        None,
        flags=("--think/--no-think",),
        group=THINKING,
        help="Let the model reason first, or not. Default: that of its chat template.",
    )
    reasoning_budget: int | None = option(
        None,
        at_least=0,
        group=THINKING,
        help="Maximum tokens of reasoning before the answer.",
    )


SamplingArguments = Annotated[dict[str, Any], Given(SamplingParams, "the model's own")]
SystemOption = Annotated[
    str | None,
    typer.Option(
        "--system", metavar="TEXT", rich_help_panel=PROMPT, help="A system message, placed before the conversation."
    ),
]
SyntheticOption = Annotated[
    str | None,
    typer.Option(
        metavar="SHAPE",
        rich_help_panel=MODEL,
        help="Use random weights of this shape instead of a file: 2b4t, bonsai-8b, bonsai-4b, bonsai-1.7b, bonsai-27b, "
        "bonsai2-27b, maple-20b, embedding-0.6b, bonsai-tiny, bonsai2-tiny, maple-tiny, embedding-tiny or tiny.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", rich_help_panel=OUTPUT, help="Print JSON.")]
SpeedOption = Annotated[
    bool,
    typer.Option("--speed/--no-speed", rich_help_panel=OUTPUT, help="Print the speed after each text."),
]


def _take_quiet(wanted: bool) -> bool:
    be_quiet(wanted)
    return wanted


QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        rich_help_panel=OUTPUT,
        callback=_take_quiet,
        help="Print results, warnings and errors only: no model, device, speed or progress.",
    ),
]

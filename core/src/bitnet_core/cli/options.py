"""Options that several commands share, and opening the model that they describe."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from bitnet_hal.errors import UsageError
from bitnet_hal.text_files import decoded

from bitnet_core.cli.console import be_quiet, note, progress_bar, say
from bitnet_core.cli.program import EndedByInterrupt
from bitnet_core.cli.start import uncollected

if TYPE_CHECKING:
    from bitnet_core.api import Model
    from bitnet_core.model.source import ModelSource

MAX_INPUT = 16 << 20
"""Bytes of text taken from a file or stdin."""


class KvType(StrEnum):
    """Storage of the KV cache."""

    f16 = "f16"
    f32 = "f32"
    int8 = "int8"


class Evicted(StrEnum):
    """Which reusable prefix of the cache goes first."""

    lru = "lru"
    fifo = "fifo"
    lfu = "lfu"


class ActivationGroupSize(StrEnum):
    """Columns that share an activation scale."""

    a32 = "32"
    a128 = "128"


class Layout(StrEnum):
    """Byte layouts of I2_S tensors."""

    A = "A"  # 128 columns in 32 bytes: Microsoft's published files
    B = "B"  # 64 columns in 16 bytes: written on ARM
    C = "C"  # four rows interleaved


PROMPT, MODEL, SAMPLING, THINKING = "Prompt", "Model", "Sampling", "Thinking"
DEVICE, CACHE, OUTPUT = "Device", "Cache", "Output"
"""Groups of options in the help."""
THREADS_VARIABLE = "BITNET_NUM_THREADS"  # bitnet-cpu reads it


def _take_threads(wanted: int | None) -> int | None:
    """The variable is set for this process and those that it starts, before any of them opens a device."""
    if wanted is not None:
        os.environ[THREADS_VARIABLE] = str(wanted)
    return wanted


def _take_quiet(wanted: bool) -> bool:
    be_quiet(wanted)
    return wanted


ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="FILE",
        rich_help_panel=MODEL,
        help="GGUF file, model folder or hf:OWNER/REPO[:FILE]. Default: the small model that comes with bitnet.",
    ),
]
LayoutOption = Annotated[
    Layout | None,
    typer.Option(
        "--layout", rich_help_panel=MODEL, help="Byte layout of I2_S tensors, where bitnet's own guess is wrong."
    ),
]
ActivationOption = Annotated[
    ActivationGroupSize | None,
    typer.Option(
        "--activation-group-size",
        rich_help_panel=MODEL,
        help="Columns that share an activation scale, of models that have one for blocks: 128 makes prompts faster and "
        "rounds more coarsely. Default: 32.",
    ),
]
DeterministicOption = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        rich_help_panel=DEVICE,
        help="Make every text independent of the requests beside it, on any device. `bitnet devices -v` shows the rows "
        "that a step then has at most; speed may suffer.",
    ),
]
MmapOption = Annotated[
    bool,
    typer.Option(
        "--mmap/--no-mmap",
        rich_help_panel=MODEL,
        help="Map the file, or read it as a whole, so that it may change meanwhile.",
    ),
]
SyntheticOption = Annotated[
    str | None,
    typer.Option(
        metavar="SHAPE",
        rich_help_panel=MODEL,
        help="Random weights of a shape, no file: 2b4t, bonsai-8b, bonsai-4b, bonsai-1.7b, bonsai-27b, bonsai2-27b, "
        "bonsai-tiny, bonsai2-tiny or tiny.",
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        "-d",
        metavar="DEVICE",
        rich_help_panel=DEVICE,
        help="auto, cpu, gpu, or a backend with or without an index (cuda:0). Default: BITNET_DEVICE, then auto.",
    ),
]
FallbackOption = Annotated[
    bool,
    typer.Option(
        "--fallback/--no-fallback",
        rich_help_panel=DEVICE,
        help="Whether auto goes on with the next device where one fails.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        "-t",
        min=1,
        max=1024,
        metavar="N",
        rich_help_panel=DEVICE,
        callback=_take_threads,
        help=f"Threads of the cpu backend. Default: {THREADS_VARIABLE}, then the physical cores.",
    ),
]
KvOption = Annotated[KvType, typer.Option("--kv-cache-type", rich_help_panel=CACHE, help="Storage of the KV cache.")]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--context",
        "-c",
        min=1,
        metavar="N",
        rich_help_panel=CACHE,
        help="Longest sequence, in tokens. Default: the model's.",
    ),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        "--kv-cache-size",
        metavar="SIZE",
        rich_help_panel=CACHE,
        help="Memory of the KV cache, as 800M or 4G. Default: half of what weights and scratch leave free on a GPU "
        "with memory of its own, elsewhere a quarter of the free memory, up to 1 GiB; no more than needed.",
    ),
]
SequencesOption = Annotated[
    int, typer.Option("--max-sequences", min=1, metavar="N", rich_help_panel=CACHE, help="Maximum concurrent requests.")
]
EvictionOption = Annotated[
    Evicted,
    typer.Option("--eviction", rich_help_panel=CACHE, help="Which reusable prefix of the cache goes first."),
]
MaxTokensOption = Annotated[
    int,
    typer.Option(
        "--max-tokens",
        "-n",
        min=1,
        metavar="N",
        rich_help_panel=SAMPLING,
        help="Tokens of a text or an answer at most; a line says so where it ends there.",
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="X",
        rich_help_panel=SAMPLING,
        help="0 takes the likeliest token. Default, here and below: what the model says.",
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(min=0, metavar="K", rich_help_panel=SAMPLING, help="Sample from the K likeliest tokens; 0 for all."),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        min=0.0, max=1.0, metavar="P", rich_help_panel=SAMPLING, help="Sample from the likeliest tokens of this mass."
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        metavar="P",
        rich_help_panel=SAMPLING,
        help="Leave out tokens less likely than this part of the likeliest.",
    ),
]
PenaltyOption = Annotated[
    float | None,
    typer.Option(
        min=0.01, metavar="X", rich_help_panel=SAMPLING, help="Divide the logits of tokens seen by this; 1 for none."
    ),
]
SeedOption = Annotated[int | None, typer.Option(metavar="N", rich_help_panel=SAMPLING, help="Same seed, same text.")]
StopOption = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", rich_help_panel=SAMPLING, help="Stop before this text; may be repeated."),
]
SystemOption = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", rich_help_panel=PROMPT, help="A system message, before the conversation."),
]
ThinkOption = Annotated[
    bool | None,
    typer.Option(
        "--think/--no-think",
        rich_help_panel=THINKING,
        help="Have the model reason first, or not. Default: as its chat template has it.",
    ),
]
ReasoningBudgetOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        rich_help_panel=THINKING,
        help="Tokens of reasoning after which the model is made to answer.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", rich_help_panel=OUTPUT, help="Print JSON.")]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        rich_help_panel=OUTPUT,
        callback=_take_quiet,
        help="Results, warnings and errors only: nothing of model, device and speed, and no progress.",
    ),
]
SpeedOption = Annotated[
    bool,
    typer.Option("--speed/--no-speed", rich_help_panel=OUTPUT, help="Tell the speed after each text."),
]


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model, where, and how its cache is kept."""

    model: str | None
    device: str | None
    kv: KvType
    context: int | None
    layout: Layout | None
    mmap: bool = True
    synthetic: str | None = None  # a shape of random weights instead of a model
    fallback: bool = True
    kv_cache_bytes: str | None = None
    max_sequences: int = 32
    eviction: Evicted = Evicted.lru
    activation_group_size: ActivationGroupSize | None = None
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; the fields are parameters of `Model.generate`, None for what the model says."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | None
    stop: tuple[str, ...]

    def parameters(self) -> dict[str, Any]:
        """As keyword arguments."""
        return asdict(self)

    def of(self, model: Model) -> Sampling:
        """With the model's own values where none are given; a line says so where they make it sample."""
        own = model.defaults
        if self.temperature is None and own.temperature > 0:
            note(f"{own.described()}: from {own.origin}; --temperature 0 takes the likeliest tokens")
        missing = {name: getattr(own, name) for name, value in asdict(self).items() if value is None and name != "seed"}
        return replace(self, **missing)


@dataclass(frozen=True, slots=True)
class Thinking:
    """Whether, and for how long, a model reasons before it answers; parameters of `Model.chat`."""

    enable_thinking: bool | None
    reasoning_budget: int | None

    def parameters(self) -> dict[str, Any]:
        """As keyword arguments."""
        return asdict(self)


def refuse_for_raw(system: str | None, thinking: Thinking) -> None:
    """UsageError for options of messages where a text goes on without the chat template."""
    given = {
        "--system": system,
        "--think and --no-think": thinking.enable_thinking,
        "--reasoning-budget": thinking.reasoning_budget,
    }
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{name} and --raw (--no-chat) exclude each other: without the chat template is no message"
            )


@contextmanager
def opened(choice: ModelChoice) -> Iterator[Model]:
    """The model, with a progress bar while it loads, and a line that names it and its device."""
    with uncollected():
        model = _loaded(choice)
    try:
        with model:
            _introduce(model)
            if hint := slow_device(choice.device, model.device.info.backend):
                note(hint)
            yield model
    finally:
        gc.unfreeze()  # bindings take what is never looked through for a leak, and say so when the program ends


def slow_device(request: str | None, backend: str) -> str:
    """A line for somebody whose request left numpy as the best device, "" otherwise."""
    from bitnet_hal.discovery.known import KNOWN, install_command
    from bitnet_hal.discovery.registry import registry
    from bitnet_hal.discovery.request import AUTO, resolve_request

    if backend != "numpy" or resolve_request(request) != AUTO:
        return ""
    said = "numpy is the slow reference; the fast CPU backend"
    if "cpu" in {*registry().backends, *(entry.name for entry in registry().quarantined)}:
        return f"{said}, which is installed, cannot be used here: bitnet doctor says why"
    return f"{said} is {KNOWN['cpu'].package}: {install_command(KNOWN['cpu'].package)}"


def _introduce(model: Model) -> None:
    for finding in model.source.findings:
        if finding.severity == "warning":
            say(f"warning: {finding.message} [{finding.code}]", "yellow")
    info, path = model.device.info, model.summary.compute_path
    note(f"{model.name} on {info.request} ({info.name})" + ("" if path == "real" else f", compute path {path}"))


def _loaded(choice: ModelChoice) -> Model:
    from bitnet_hal.discovery.opening import Opening
    from bitnet_hal.discovery.request import resolve_request

    model = _named(choice)
    budget = nbytes(choice.kv_cache_bytes) if choice.kv_cache_bytes else None
    with Opening(resolve_request(choice.device), choice.fallback) as opening:
        with EndedByInterrupt():
            from bitnet_core.api import load  # takes about as long as the driver to begin

        with progress_bar("starting") as progress:
            return load(
                model,
                opening,
                kv_dtype=choice.kv.value,
                context=choice.context,
                kv_cache_bytes=budget,
                max_sequences=choice.max_sequences,
                eviction=choice.eviction.value,
                activation_group_size=group_size_of(choice.activation_group_size),
                deterministic=choice.deterministic,
                layout=choice.layout.value if choice.layout else None,
                mmap=choice.mmap,
                progress=progress,
            )


def _named(choice: ModelChoice) -> str | Path | ModelSource | None:
    """What `load` is to open."""
    if choice.synthetic:
        from bitnet_core.formats.synthetic import SyntheticSource

        return SyntheticSource(choice.synthetic)
    if choice.model is None:
        return None
    from bitnet_core.hub import local

    return local(choice.model, say)


def group_size_of(choice: ActivationGroupSize | None) -> int | None:
    """As `load` takes it."""
    return int(choice.value) if choice else None


def nbytes(text: str) -> int:
    """Bytes of a size such as 800M, 4G or 1.5GiB (powers of 1024); UsageError for another text."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,3})?)\s*([KMGT]?)(?:I?B)?", text.strip().upper(), re.ASCII)
    if match is None or not float(match[1]):
        raise UsageError(f"'{text[:40]}' is no size: use a number with K, M, G or T, as in 800M or 4G")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " "))


def source_of(model: str | None, synthetic: str | None) -> tuple[ModelSource, str]:
    """The opened model without a device, and its name; UsageError where both are given."""
    from bitnet_hal.environment import strict_mode

    from bitnet_core.api.loading import open_source
    from bitnet_core.formats.synthetic import SyntheticSource

    if model is not None and synthetic is not None:
        raise UsageError("--model and --synthetic exclude each other")
    source = SyntheticSource(synthetic) if synthetic else open_source(model, None, strict_mode(), True)
    return source, source.config.name or source.path.name


def read_text(source: str) -> str:
    """The text of a file, or of stdin for "-", without a byte order mark and without the line break at its end, and
    with line breaks of one character; UsageError if it is missing, too long or not UTF-8."""
    name = "stdin" if source == "-" else source
    try:
        if source == "-":
            raw = sys.stdin.buffer.read(MAX_INPUT + 1)
        else:
            with Path(source).open("rb") as file:
                raw = file.read(MAX_INPUT + 1)
    except OSError as exc:
        raise UsageError(f"{name} cannot be read: {exc.strerror or exc}") from exc
    if len(raw) > MAX_INPUT:
        raise UsageError(f"{name} is longer than {MAX_INPUT >> 20} MiB")
    try:
        return decoded(raw).replace("\r\n", "\n").removesuffix("\n")
    except ValueError as exc:
        raise UsageError(f"{name} {exc}") from exc

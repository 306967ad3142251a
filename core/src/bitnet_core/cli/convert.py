"""`bitnet convert` and `bitnet quantize`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitnet_core.cli.console import progress_bar, say
from bitnet_core.cli.parameters import Field, expanded
from bitnet_core.options.loading import Layout, LoadOptions

if TYPE_CHECKING:  # heavy modules are imported on use, so that help appears at once
    from bitnet_core.model.source import Finding, ModelSource


class To(StrEnum):
    """The formats that can be written."""

    i2_s = "i2_s"
    tq2_0 = "tq2_0"
    tq1_0 = "tq1_0"
    q2_0 = "q2_0"
    pq2_0 = "pq2_0"
    stq1_0 = "stq1_0"
    safetensors = "safetensors"
    mlx = "mlx"


_TO_HELP = (
    "GGUF with this encoding, or a Hugging Face or MLX folder. stq1_0 is for Hy-MT alone, in whose matrices one weight "
    "of four is zero. TL1 and TL2 can only be read, because their files do not hold the tile sizes."
)
SourceArgument = Annotated[str, typer.Argument(metavar="SRC", help="A GGUF file, a model folder or hf:OWNER/REPO.")]
DestinationArgument = Annotated[
    Path, typer.Argument(metavar="DST", help="The file (safetensors and mlx: folder) to write.")
]
ToOption = Annotated[To, typer.Option("--to", help=_TO_HELP)]
VerifyOption = Annotated[bool, typer.Option("--verify", help="Read the result back and compare every value and scale.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing destination.")]


def register(app: typer.Typer) -> None:
    app.command("convert")(convert)
    app.command("quantize")(quantize)


@expanded
def convert(
    source: SourceArgument,
    destination: DestinationArgument,
    to: ToOption = To.i2_s,
    verify: VerifyOption = False,
    layout: Annotated[Layout | None, Field(LoadOptions)] = None,
    force: ForceOption = False,
) -> None:
    """Convert a model to another format.

    Float masters of a Hugging Face folder are quantized (absmean per matrix). Nothing is left behind on failure.
    """
    from bitnet_core.formats.open import open_model
    from bitnet_core.hub import local

    _run(open_model(local(source, say), layout=layout), destination, to, verify, force)


def quantize(
    source: SourceArgument,
    destination: DestinationArgument,
    to: ToOption = To.i2_s,
    verify: VerifyOption = False,
    force: ForceOption = False,
) -> None:
    """Quantize float master weights to ternary: absmean per matrix, as BitNet is trained.

    For Hugging Face folders and GGUF files whose matrices are F32, F16 or BF16.
    """
    from bitnet_hal.errors import UsageError

    from bitnet_core.formats.convert.convert import has_masters
    from bitnet_core.formats.open import open_model
    from bitnet_core.hub import local

    opened = open_model(local(source, say), quantize=True)
    if not has_masters(opened):
        raise UsageError(
            f"{source}: its weights are ternary already ({opened.format}); change the format with `bitnet convert`"
        )
    _run(opened, destination, to, verify, force)


def _run(source: ModelSource, destination: Path, to: To, verify: bool, force: bool) -> None:
    from bitnet_core.api import settle_layout
    from bitnet_core.formats.convert.convert import convert as convert_model

    try:
        settle_layout(source)
        _show(source.findings)
        with progress_bar() as progress:
            done = convert_model(source, destination, to.value, force=force, verify=verify, progress=progress)
        _show(done.findings)
        checked = ", read back and compared" if done.verified else ""
        say(f"{destination}: {done.nbytes / 1e6:.1f} MB from {source.format}{checked}", style="")
    finally:
        source.close()


def _show(findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.severity == "warning":
            say(f"warning: {finding.message} [{finding.code}]", "yellow")

"""`bitnet convert` and `bitnet quantize`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from click import Choice

from bitnet_core.cli.console import progress_bar, say

if TYPE_CHECKING:  # heavy modules are imported where they are used: help must come at once
    from bitnet_core.formats.source import Finding, ModelSource

_TARGETS = Choice(["i2_s", "tq2_0", "tq1_0", "safetensors"])
_LAYOUTS = Choice(["A", "B", "C"], case_sensitive=False)

Source = Annotated[Path, typer.Argument(help="A GGUF file or a Hugging Face folder.")]
Destination = Annotated[Path, typer.Argument(help="The file (safetensors: the folder) to write.")]
To = Annotated[str, typer.Option(click_type=_TARGETS, help="GGUF with this encoding, or a Hugging Face folder.")]
Verify = Annotated[bool, typer.Option("--verify", help="Read the result back and compare every value and scale.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is at the destination.")]
Layout = Annotated[
    str | None, typer.Option(click_type=_LAYOUTS, help="Byte layout of the source's I2_S tensors (default: detected).")
]


def register(app: typer.Typer) -> None:
    """Add both commands."""
    app.command("convert")(convert)
    app.command("quantize")(quantize)


def convert(
    source: Source,
    destination: Destination,
    to: To = "i2_s",
    verify: Verify = False,
    layout: Layout = None,
    force: Force = False,
) -> None:
    """Convert a model to another format.

    Float masters of a Hugging Face folder are quantized (absmean per matrix). Nothing is left behind on failure.
    """
    from bitnet_core.formats.open import open_model

    _run(open_model(source, layout=layout), destination, to, verify, force)  # type: ignore[arg-type]  # checked by click


def quantize(
    source: Source, destination: Destination, to: To = "i2_s", verify: Verify = False, force: Force = False
) -> None:
    """Quantize float master weights to ternary: absmean per matrix, as BitNet is trained.

    For Hugging Face folders and GGUF files whose matrices are F32, F16 or BF16.
    """
    from bitnet_core.errors import UsageError
    from bitnet_core.formats.convert import has_masters
    from bitnet_core.formats.open import open_model

    opened = open_model(source, quantize=True)
    if not has_masters(opened):
        raise UsageError(
            f"{source}: its weights are ternary already ({opened.format}); change the format with `bitnet convert`"
        )
    _run(opened, destination, to, verify, force)


def _run(source: ModelSource, destination: Path, to: str, verify: bool, force: bool) -> None:
    from bitnet_core.formats.convert import convert as convert_model

    try:
        _show(source.findings)
        with progress_bar() as progress:
            done = convert_model(
                source,
                destination,
                to,  # type: ignore[arg-type]  # click has checked it
                force=force,
                verify=verify,
                progress=progress,
            )
    finally:
        source.close()
    _show(done.findings)
    checked = ", read back and compared" if done.verified else ""
    say(f"{destination}: {done.nbytes / 1e6:.1f} MB from {source.format}{checked}")


def _show(findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.severity == "warning":
            say(f"warning: {finding.message} [{finding.code}]", "yellow")

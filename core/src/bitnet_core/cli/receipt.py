"""`bitnet receipt verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bitnet_core.cli.console import say, write_text


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True)
    group.command("verify")(verify)
    app.add_typer(group, name="receipt", help="Check receipts.")


def verify(
    file: Annotated[Path, typer.Argument(readable=False, help="A receipt that `bitnet run --receipt` wrote.")],
) -> None:
    """Check a receipt: its fields, its hash, and that its parts do not contradict each other.

    Exit code 14 if it does not verify.
    """
    from bitnet_core.receipt_checks import verify_receipt

    receipt = verify_receipt(file)
    device, model = receipt["device"], receipt["model"]
    write_text(
        f"{file} verifies: {model['name']} on {device['backend']}:{device['index']} ({device['name']}), "
        f"path {receipt['compute_path']}, {receipt['tokens']['generated']} tokens, {receipt['time']}\n"
    )
    layers = receipt.get("layers", {})
    if len(layers) > 1:
        say("layers: " + ", ".join(f"{name} {count}" for name, count in layers.items()))
    lacks = [] if "fallback" in receipt["startup"] else ["whether fallback was allowed"]
    if "speculation" not in receipt:
        lacks.append("draft tokens")
    if "engine" not in receipt:
        lacks += ["the cache's type", "the activation scales", "the context", "chat or schema"]
    if lacks:
        say(f"an older receipt: it does not name {', '.join(lacks)}")

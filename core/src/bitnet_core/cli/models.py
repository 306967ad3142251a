"""`bitnet pull` and `bitnet models`: known models of the hub, and local copies."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from bitnet_hal.errors import UsageError

from bitnet_core.cli.blocks import print_block
from bitnet_core.cli.console import print_json, print_line, say
from bitnet_core.cli.options import JsonOption
from bitnet_core.units import count, size

if TYPE_CHECKING:
    from bitnet_core.hub import CachedModel, PublishedFamily


def register(app: typer.Typer) -> None:
    app.command("pull")(pull)
    group = typer.Typer(invoke_without_command=True)
    group.callback()(models)
    group.command("rm")(remove)
    app.add_typer(group, name="models", help="List local and known models, or remove one.")


def pull(
    model: Annotated[
        str, typer.Argument(metavar="hf:OWNER/REPO[:FILE][@REVISION]", help="A model of the hub, or its short name.")
    ],
) -> None:
    """Fetch a model of the Hugging Face Hub, or update the local copy; print its path.

    Without a file the best form is taken. HF_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE apply.
    """
    from bitnet_core.hub import Reference
    from bitnet_core.hub import pull as fetch

    print_line(fetch(Reference.parse(model), say))


def models(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the local models of the hub, by their names for -m, and the models that are known to run."""
    if context.invoked_subcommand is not None:
        return
    from bitnet_core.hub import cached_models, families

    here, known = cached_models(), [family for family in families() if family.runs]
    if as_json:
        print_json(
            {
                "here": [asdict(model) | {"path": str(model.path)} for model in here],
                "known": [asdict(family) for family in known],
            }
        )
        return
    print_block("Here:" if here else "No models of the hub are here.")
    for model in here:
        print_block(model.reference, _about(model))
    print_block("")
    print_block("Known to run:")
    for family in known:
        print_block(f"{family.name} ({family.publisher}), {family.sizes}; licence {family.licence}", *_known(family))


def remove(
    model: Annotated[str, typer.Argument(metavar="NAME", help="As `bitnet models` lists it, or its short name.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it without asking.")] = False,
) -> None:
    """Remove the local copy of a model of the hub: all of its repository, or one @REVISION."""
    from bitnet_core.hub import Reference, removal
    from bitnet_core.hub import remove as take_away

    found = removal(Reference.parse(model))
    copy = f"{found.reference}: {size(found.nbytes)} in {count(found.files, 'file')} of {found.folder}"
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"{copy} would be removed; --yes does it without asking")
        say(copy, style="")
        if not typer.confirm("Remove it?", err=True):
            say("Nothing was removed.")
            return
    take_away(found)
    say(f"removed {copy}")


def _about(model: CachedModel) -> str:
    used = datetime.fromtimestamp(model.used).strftime("%Y-%m-%d")
    return f"{size(model.nbytes)}, {model.form}, commit {model.commit[:12]}, used {used}"


def _known(family: PublishedFamily) -> list[str]:
    """Return the lines about a family; Markdown in its forms becomes plain text."""
    lines = [family.forms.replace("`", ""), *([family.download] if family.download else [])]
    lines += [f"bitnet pull {name}    ({reference})" for name, reference in family.models.items()]
    if not family.models:
        lines.append(f"bitnet pull hf:OWNER/REPO, as {family.publisher} names it on huggingface.co")
    return lines

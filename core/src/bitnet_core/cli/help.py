"""Help and usage errors of the program: options in groups at any width, errors as one line."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from bitnet_core.cli.options import GROUPS

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}

ELSEWHERE = {
    **dict.fromkeys(
        ("-ngl", "--n-gpu-layers", "--gpu-layers"),
        "a model runs whole on one device, which --device chooses, as in -d gpu",
    ),
    **dict.fromkeys(("-no-cnv", "--no-conversation"), "--raw continues a prompt"),
    **dict.fromkeys(("-cnv", "--conversation"), "bitnet chat is a conversation"),
    **dict.fromkeys(("-sys", "--system-prompt"), "it is --system"),
    **dict.fromkeys(("-f", "--file"), "a prompt is read from stdin: bitnet run - < FILE"),
    **dict.fromkeys(("-hf", "--hf-repo"), "a model of the hub is -m hf:OWNER/REPO"),
    "--ctx-size": "it is --context",
    "--temp": "it is --temperature",
    "--repeat-penalty": "it is --repetition-penalty",
    "--n-predict": "it is --max-tokens",
}
"""Options of llama.cpp, and their replacements."""


class Command(TyperCommand):
    """A command whose help shows its options in groups, by their rich_help_panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group, in the order of the options."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if param.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(param, "rich_help_panel", None) or default, []).append(record)
        for name in sorted(groups, key=_position):
            with formatter.section(name):
                formatter.write_dl(groups[name])


def _position(group: str) -> int:
    """Return a group's sort key in the help: arguments first, a command's own groups after the common ones."""
    order = ["Arguments", *GROUPS]
    if group in order:
        return order.index(group)
    return len(order) + (group == "Options")  # --help comes last


class Group(TyperGroup):
    """The program; its help shows the whole summary of each command."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for core's commands, and one for each other group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                summary = command.get_short_help_str(limit=1000)
                groups.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append((name, summary))
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


class App(typer.Typer):
    """A Typer application whose commands are instances of Command."""

    def command(self, *args: Any, **settings: Any) -> Any:
        """Register a command as Typer does."""
        return super().command(*args, **{"cls": Command, **settings})


def expanded(arguments: list[str]) -> list[str]:
    """Return the arguments with `help COMMAND`, and no arguments at all, replaced by --help."""
    if arguments[:1] == ["help"]:
        return [*arguments[1:], "--help"]
    return arguments or ["--help"]


def usage_problem(error: BaseException, arguments: list[str]) -> str:
    """Return the message about a wrong command line, "" for an exception that is not a usage error.

    Typer's usage errors are click's or its own copies of them, depending on its version; they are recognised by their
    method.
    """
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return ""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for name in (argument.partition("=")[0] for argument in options):
        if name in ELSEWHERE:
            return f"there is no {name} here; {ELSEWHERE[name]}"
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "bitnet"
    message = str(format_message()).strip().removesuffix(".")
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the whole help
        message = f"{path} needs a command"
    message = message.replace("int range", "whole number").replace("float range", "number")
    end = "" if message.endswith("?") else "."
    return f"{message[:1].lower()}{message[1:]}{end} `{path} --help` shows how it is used"

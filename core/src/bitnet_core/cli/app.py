"""The program: its commands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from bitnet_core.cli import bench, chat, convert, devices, doctor, inspect, new_backend, perplexity, receipt, run
from bitnet_core.cli.console import harmless
from bitnet_core.errors import BitnetError
from bitnet_core.hal.discovery import registry
from bitnet_core.logs import configure_logging
from bitnet_core.version import core_version

OUT_OF_MEMORY = 13
INTERRUPTED = 130

log = logging.getLogger(__name__)


def build_app() -> typer.Typer:
    """All commands: core's own, then those of plugins."""
    app = typer.Typer(
        name="bitnet",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if sys.stdout.isatty() else None,  # rich doubles the time that help takes
    )
    app.callback()(_options)
    for module in (run, chat, inspect, convert, bench, perplexity, devices, doctor, receipt, new_backend):
        module.register(app)
    _add_plugin_commands(app)
    return app


def main() -> None:
    """Entry point of `bitnet`; leaves through SystemExit."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if stream is sys.stderr else None)
    try:
        configure_logging(os.environ.get("BITNET_LOG", ""))
        build_app()(prog_name="bitnet")
    except BitnetError as error:
        _fail(str(error), error.exit_code, error)
    except MemoryError as error:
        _fail("out of memory. Use a smaller context, a smaller model, or close other programs", OUT_OF_MEMORY, error)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the last resort: a message instead of a traceback
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _fail(f"unexpected failure: {text}. BITNET_LOG=debug shows where", 1, error)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bitnet-core {core_version()}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Run 1.58-bit language models on any vendor's hardware."""


def _fail(message: str, code: int, error: BaseException) -> None:
    log.debug("traceback", exc_info=error)
    print(f"bitnet: error: {harmless(message)}", file=sys.stderr)  # noqa: T201 - the program's own voice
    sys.exit(code)


def _add_plugin_commands(app: typer.Typer) -> None:
    taken = {info.name or info.callback.__name__ for info in app.registered_commands if info.callback}

    def register(name: str, function: Callable[..., None]) -> None:
        if name in taken:
            raise ValueError(f"the command '{name}' exists already")
        taken.add(name)
        app.command(name, rich_help_panel="Commands of plugins")(function)

    for plugin, function, names in registry().hook_functions("bitnet_commands"):
        try:
            function(**{"register": register} if "register" in names else {})
        except Exception as error:  # noqa: BLE001 - one plugin's commands must not take the program down
            log.warning("plugin %s failed to add its commands: %s: %s", plugin, type(error).__name__, error)

"""The program: its commands, and the conversion of errors to messages and exit codes."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Annotated

import typer
from bitnet_hal.discovery.known import PACKAGE_COMMANDS, install_command
from bitnet_hal.discovery.registry import registry
from bitnet_hal.errors import BitnetError, UsageError
from bitnet_hal.isolation import bounded, describe_error
from bitnet_hal.settings import setting

from bitnet_core.cli import help as helping
from bitnet_core.cli import standard_streams as streams
from bitnet_core.cli.console import harmless
from bitnet_core.cli.program import INTERRUPTED, EndedByInterrupt
from bitnet_core.cli.start import prepare_environment
from bitnet_core.logs import configure_logging, log_hint
from bitnet_core.version import core_version

_COMMAND = re.compile(r"[a-z][a-z0-9-]{0,39}", re.ASCII)

COMMANDS = {
    "run": ("run",),
    "chat": ("chat",),
    "models": ("pull", "models"),
    "inspect": ("inspect",),
    "convert": ("convert", "quantize"),
    "bench": ("bench",),
    "perplexity": ("perplexity",),
    "embed": ("embed",),
    "devices": ("devices",),
    "tune": ("tune",),
    "doctor": ("doctor",),
    "receipt": ("receipt",),
    "kernels": ("kernels",),
    "new_backend": ("new-backend",),
}
"""Core's commands by module, in the order of the help."""
LONGEST_MESSAGE = 6000  # a path alone may have 4,096 characters
OUT_OF_MEMORY = 13

log = logging.getLogger(__name__)


def build_app(command: str = "") -> typer.Typer:
    """Build the application: core's commands, then those of plugins.

    command: a command of core to build alone beside those of plugins, because building all of them takes a tenth of the
    start-up time.
    """
    wanted = [module for module, names in COMMANDS.items() if command in names]
    app = helping.App(
        name="bitnet",
        cls=helping.Group,
        context_settings=helping.CONTEXT,
        add_completion=not wanted,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # with rich, help takes twice the time and twice the width
    )
    app.callback()(_options)
    for module in wanted or COMMANDS:
        import_module(f"bitnet_core.cli.{module}").register(app)
    for command_of_core in app.registered_commands:
        if command_of_core.callback is not None:
            command_of_core.callback = streams.printed_to_stderr()(command_of_core.callback)
    _add_plugin_commands(app)
    return app


def main() -> None:
    """Run the command that the arguments name. Raises SystemExit at its end."""
    streams.open_streams()
    streams.keep_result_apart()
    prepare_environment()
    _end_on_signals()
    try:
        configure_logging(os.environ.get("BITNET_LOG") or str(setting("log") or ""))
        try:
            arguments = helping.expanded(sys.argv[1:])
            with EndedByInterrupt():
                app = build_app(arguments[0])
            _check_installed(app, arguments[0])
            with streams.printed_as_result():
                ended = app(args=arguments, prog_name="bitnet", standalone_mode=False)
        finally:
            streams.result().flush()  # raises a write error now rather than after the exit code is set
    except BitnetError as error:
        _fail(str(error) + log_hint(error), error.exit_code, error)
    except MemoryError as error:
        _fail("out of memory. Use a smaller context, a smaller model, or close other programs", OUT_OF_MEMORY, error)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except typer.Abort:
        sys.exit(1)
    except OSError as error:
        streams.discard()
        if isinstance(error, BrokenPipeError):  # the reader closed the pipe
            sys.exit(1)
        _fail(f"{error.filename or 'the output'}: {error.strerror or error}", 1, error)
    except Exception as error:  # noqa: BLE001 - users get a message instead of a traceback
        if problem := helping.usage_problem(error, sys.argv[1:]):
            _fail(problem, UsageError.exit_code, error)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _fail(f"unexpected failure: {text}. BITNET_LOG=debug shows the traceback", 1, error)
    sys.exit(ended if isinstance(ended, int) else 0)


def _end_on_signals() -> None:
    """Convert termination signals to SystemExit, so that unfinished files are removed."""

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if (
            number is not None
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(number) is signal.SIG_DFL  # under nohup it stays ignored
        ):
            signal.signal(number, end)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bitnet-core {core_version()}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Run 1.58-bit language models on any vendor's hardware."""


def _fail(message: str, code: int, error: BaseException) -> None:
    log.debug("traceback", exc_info=error)
    shown = message if len(message) <= LONGEST_MESSAGE else message[:LONGEST_MESSAGE] + "..."
    print(f"bitnet: error: {harmless(shown)}", file=sys.stderr)  # noqa: T201 - the program's error message
    sys.exit(code)


def _add_plugin_commands(app: typer.Typer) -> None:
    taken = {name for names in COMMANDS.values() for name in names}

    def register(name: str, function: Callable[..., None]) -> None:
        if name in taken:
            raise ValueError(f"the command '{name}' exists already")
        _check_command(name, function)
        taken.add(name)
        app.command(name, rich_help_panel="Commands of plugins")(function)

    for plugin, function, names in registry().hook_functions("bitnet_commands"):
        try:
            arguments = {"register": register} if "register" in names else {}
            bounded(partial(function, **arguments), plugin, "adding its commands")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a plugin's commands must not break the others
            log.warning("plugin %s failed to add its commands: %s", plugin, describe_error(error))


def _check_installed(app: typer.Typer, command: str) -> None:
    """Raise UsageError for a command whose package is not installed or fails to load."""
    package = PACKAGE_COMMANDS.get(command)
    if package is None or any(registered.name == command for registered in app.registered_commands):
        return
    if any(entry.distribution == package for entry in registry().quarantined):
        raise UsageError(f"{command} is in {package}, which fails to load: `bitnet doctor` says why")
    raise UsageError(f"{command} is in {package}: {install_command(package)}")


def _check_command(name: str, function: Callable[..., None]) -> None:
    """Raise Typer's exception for this command now; later it would make all other commands fail."""
    if not isinstance(name, str) or not _COMMAND.fullmatch(name) or not callable(function):
        raise ValueError("a command is a name of small letters, digits and hyphens, and a function")
    alone = typer.Typer()
    alone.command(name)(function)
    typer.main.get_command(alone)

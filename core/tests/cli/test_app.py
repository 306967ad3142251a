"""The error boundary, help, plugin commands and log levels."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from bitnet_core.cli.app import COMMANDS, build_app
from bitnet_core.errors import TokenizerError
from bitnet_core.logs import configure_logging
from bitnet_hal.errors import DeviceLostError, OutOfMemoryError, StrictModeError, UsageError

BITNET = [sys.executable, "-c", "from bitnet_core.cli.app import main; main()"]


def failing_command(error: str) -> str:
    return f"""
    def command() -> None:
        '''Fails.'''
        import bitnet_core.errors as core
        import bitnet_hal.errors as e
        raise {error}

    @hookimpl
    def bitnet_commands(register):
        register("broken", command)
    """


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ("e.BitnetError('general')", 1, "general"),
        ("e.UsageError('usage')", UsageError.exit_code, "usage"),
        ("core.ModelError('bad file')", 3, "bad file"),
        ("core.TokenizerError('bad vocabulary')", TokenizerError.exit_code, "bad vocabulary"),
        ("e.StrictModeError('strict')", StrictModeError.exit_code, "strict"),
        ("e.DeviceNotFoundError('none', hint='Install one')", 11, "none. Install one"),
        ("e.DeviceLostError('gone', backend='cuda')", DeviceLostError.exit_code, "cuda: gone"),
        ("e.OutOfMemoryError('full', requested=1)", OutOfMemoryError.exit_code, "full"),
        ("core.ReceiptError('no receipt')", 14, "no receipt"),
        ("MemoryError()", 13, "out of memory"),
        ("KeyboardInterrupt()", 130, ""),
        ("ZeroDivisionError('x')", 1, "ZeroDivisionError: x. BITNET_LOG=debug shows the traceback"),
    ],
)
def test_every_error_is_one_message_and_its_code(bitnet, install_plugin, error: str, code: int, message: str) -> None:
    install_plugin("vendor", failing_command(error))
    result = bitnet("broken")
    assert result.code == code
    assert message in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


@pytest.mark.parametrize(
    "arguments", [["nosuch"], ["devices", "--nosuch"], ["receipt", "nosuch"], ["receipt", "verify"]]
)
def test_wrong_usage_is_code_2(bitnet, arguments: list[str]) -> None:
    result = bitnet(*arguments)
    assert result.code == 2
    assert "Traceback" not in result.err


def test_plugins_add_commands_but_replace_none(bitnet, install_plugin, caplog: pytest.LogCaptureFixture) -> None:
    hello = """
    def hello(name: str = "world") -> None:
        print("hello", name)

    @hookimpl
    def bitnet_commands(register):
        register("hello", hello)
    """
    install_plugin("vendor", hello)
    install_plugin("thief", hello.replace('register("hello"', 'register("devices"'))
    assert bitnet("hello", "--name", "you").out == "hello you\n"
    assert "hello" in bitnet("--help").out
    assert "numpy:0" in bitnet("devices").out
    assert "the command 'devices' exists already" in caplog.text


def test_a_command_made_alone_is_the_same_as_among_all() -> None:
    every = typer.main.get_command(build_app()).commands
    assert sorted(every) == sorted(name for names in COMMANDS.values() for name in names)
    for name in every:
        alone = typer.main.get_command(build_app(name)).commands
        assert set(alone) == set(next(names for names in COMMANDS.values() if name in names))
        assert [one.opts for one in alone[name].params] == [one.opts for one in every[name].params]


def test_help_needs_less_than_half_a_second() -> None:
    # processor time of the child, best of three: the wall clock of a busy machine says nothing
    times = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run([*BITNET, "--help"], capture_output=True, text=True, check=True)
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert "devices" in done.stdout
    assert min(times) < 0.5


OPTIONAL = ("jinja2", "llguidance", "huggingface_hub", "safetensors", "torch", "transformers")
"""What only some models, formats or options need."""
APART = ("numpy", "psutil") if sys.platform == "linux" else ()
"""What backends need, which are asked in other processes."""


@pytest.mark.parametrize(
    ("arguments", "early"),
    [
        (["--help"], ("numpy", "tokenizers", "rich", "pydantic", "psutil", "bitnet_core.engine", *OPTIONAL)),
        (
            ["devices"],
            ("numpy", "tokenizers", "bitnet_core.engine", "bitnet_core.formats", "bitnet_core.api", *OPTIONAL),
        ),
        (["run", "-n", "1", "--device", "numpy", "Once"], OPTIONAL),
    ],
    ids=["help", "devices", "run"],
)
def test_a_command_imports_nothing_that_it_does_not_need(arguments: list[str], early: tuple[str, ...]) -> None:
    code = (
        f"import sys; sys.argv = ['bitnet', *{arguments!r}]\n"
        "from bitnet_core.cli.app import main\n"
        f"try:\n    main()\nfinally:\n    sys.exit(str([m for m in {early!r} if m in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.skipif(os.name != "posix", reason="pipes of a POSIX shell")
def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    """Drivers and plugins that are installed may write to stderr, so that it need not be empty."""
    script = f"'{sys.executable}' -c 'from bitnet_core.cli.app import main; main()' kernels all | true"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    assert [word for word in ("Traceback", "BrokenPipe", "bitnet: error") if word in done.stderr] == []


def test_garbage_is_collected_again_after_the_start(bitnet) -> None:
    """Objects of a model are collected at the end; those of modules that list devices are not."""
    for command, some_left in ((("run", "-n", "1", "-d", "numpy", "Once"), False), (("devices",), True)):
        gc.unfreeze()
        assert bitnet(*command).code == 0
        assert gc.isenabled()
        assert (gc.get_freeze_count() > 0) is some_left
    gc.unfreeze()


def test_log_levels(caplog: pytest.LogCaptureFixture) -> None:
    try:
        configure_logging("bitnet_core=debug, bitnet_cuda=INFO,")
        assert logging.getLogger("bitnet_core.engine").isEnabledFor(logging.DEBUG)
        assert logging.getLogger("bitnet_cuda").getEffectiveLevel() == logging.INFO
    finally:
        for name in ("bitnet_core", "bitnet_cuda"):
            logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.parametrize("levels", ["bitnet_core", "bitnet_core=loud", "=debug", "a=b=c"])
def test_wrong_log_levels(bitnet, levels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_LOG", levels)
    result = bitnet("devices")
    assert result.code == 2
    assert "BITNET_LOG" in result.err

"""The program at a terminal, with a slow driver that prints: its result arrives on stdout, and nothing else does."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pty = pytest.importorskip("pty", reason="pseudo-terminals of a POSIX system")

BITNET = f'{shlex.quote(sys.executable)} -c "from bitnet_core.cli.program import main; main()"'
ANNOUNCED = BITNET.replace(
    "main()",
    "import bitnet_core.cli.program as program; enter = program.EndedByInterrupt.__enter__;"
    " program.EndedByInterrupt.__enter__ = lambda block: (enter(block), print('begins', flush=True)); main()",
)
"""The program that prints "begins" once it handles signals, which a caller cannot see otherwise."""

NOISY = """
import ctypes, os, time
from dataclasses import replace
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyDevice

def noise():
    print("NOISE of Python")
    os.write(1, b"NOISE of the system\\n")
    ctypes.CDLL(None).printf(b"NOISE of C\\n")

class Noisy(NumpyDevice):
    def replay(self, recording):
        noise()
        super().replay(recording)

    def launch(self, *arguments):
        noise()
        super().launch(*arguments)

def devices(self):
    noise()
    time.sleep(1)
    return [replace(numpy_info(), backend="noisy", name="noisy")]

noise()
Backend.devices = devices
Backend.open = lambda self, index: noise() or Noisy(self.devices()[0])
"""


class Terminal:
    """A shell at a terminal of its own, which runs one line; `said` is what has come to the screen."""

    def __init__(self, line: str, folder: Path, site: Path) -> None:
        self.said = ""
        self._screen, screen = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": str(site), "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        streams = {"stdin": screen, "stdout": screen, "stderr": screen}
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", line], cwd=folder, env=environment, start_new_session=True, **streams
        )
        os.close(screen)

    def read_until(self, text: str = "", seconds: float = 90) -> None:
        """Read until a text has come, or without one to the end; TimeoutError where it does not."""
        end = time.monotonic() + seconds
        while not text or text not in self.said:
            if not select.select([self._screen], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"no {text!r} in {self.said!r}")
            try:
                part = os.read(self._screen, 4096)
            except OSError:  # Linux says so where the last program has closed its end
                part = b""
            if not part:
                assert not text, self.said
                return
            self.said += part.decode(errors="replace")

    def type(self, keys: str) -> None:
        """Send what is typed, and forget what was said before."""
        self.said = ""
        os.write(self._screen, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C, to all that run here."""
        os.killpg(self._shell.pid, signal.SIGINT)

    def code(self) -> int:
        """The exit code of the line, which must have been read to its end."""
        return self._shell.wait(30)

    def close(self) -> None:
        if self._shell.poll() is None:
            os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.wait()
        os.close(self._screen)


@pytest.fixture
def terminal(install_plugin: Any, tmp_path: Path) -> Iterator[Any]:
    """terminal(line) runs a line of shell, with {bitnet} for the program and a noisy driver."""
    site, begun = install_plugin("noisy", NOISY), list[Terminal]()
    (tmp_path / "text").write_text("Once upon a time there was a little dog.")

    def run(line: str) -> Terminal:
        begun.append(Terminal(line.replace("{bitnet}", BITNET), tmp_path, site))
        return begun[-1]

    yield run
    for each in begun:
        each.close()


@pytest.mark.parametrize(
    "line",
    [
        "{bitnet} run -d noisy -n 3 'Once upon a time' > out",
        "{bitnet} run -d noisy -n 3 'Once upon a time' | cat > out",
        "x=$({bitnet} run -d noisy -n 3 'Once upon a time'); echo \"$x\" > out",
        "{bitnet} run -d noisy -n 3 'Once upon a time' > out 2> err",
        "{bitnet} run --json -d noisy -n 3 'Once upon a time' > out",
        "echo hello | {bitnet} chat -d noisy -n 3 > out",
        "{bitnet} perplexity -d noisy text > out",
        "{bitnet} perplexity -d noisy text --json | cat > out",
        "{bitnet} devices --json > out",
        "{bitnet} kernels > out",
    ],
)
def test_the_result_arrives_and_nothing_else(terminal: Any, tmp_path: Path, line: str) -> None:
    run = terminal(line)
    run.read_until()
    assert run.code() == 0, run.said
    out = (tmp_path / "out").read_text()
    assert out.strip(), run.said
    assert "NOISE" not in out
    if "--json" in line:
        assert json.loads(out)


def test_a_conversation_in_a_file(terminal: Any, tmp_path: Path) -> None:
    chat = terminal("{bitnet} chat -d noisy -n 3 > out")
    chat.read_until("> ")
    chat.type("hello\r")
    chat.read_until("decode 3 tokens")
    chat.read_until("> ")
    chat.type("\x04")
    chat.read_until()
    assert chat.code() == 0
    out = (tmp_path / "out").read_text()
    assert out.strip()
    assert "NOISE" not in out
    assert "hello" not in out


@pytest.mark.parametrize("stream", ["", " > out", " 2> err"])
def test_lines_can_be_edited_and_come_back(terminal: Any, stream: str) -> None:
    pytest.importorskip("readline")
    chat = terminal("{bitnet} chat -d noisy -n 1" + stream)
    chat.read_until("> ")
    chat.type("heXllo" + "\x1b[D" * 3 + "\x7f\r")  # Left three times, Backspace
    chat.read_until("> ")
    chat.type("\x1b[A")  # Up
    chat.read_until("hello")
    chat.type("\r")
    chat.read_until("> ")
    assert "^[" not in chat.said
    chat.type("/exit\r")
    chat.read_until()
    assert chat.code() == 0


def test_help_and_commands_of_plugins_print_to_stdout(install_plugin: Any, terminal: Any, tmp_path: Path) -> None:
    hello = "@hookimpl\ndef bitnet_commands(register):\n    noise()\n    register('hello', lambda: print('hello'))\n"
    install_plugin("greeting", NOISY.replace("noisy", "greeting") + hello)
    for command, expected in (("hello", "hello\n"), ("--version", "bitnet-core "), ("run --help", "Usage: bitnet run")):
        run = terminal(f"{{bitnet}} {command} > out")
        run.read_until()
        out = (tmp_path / "out").read_text()
        assert out.lstrip().startswith(expected), run.said
        assert "NOISE" not in out


LOADED_TWICE = """
import os, sys, threading
import bitnet_core

def load():
    with bitnet_core.load(device="noisy") as model:
        model.generate("a", max_tokens=1)

before = os.fstat(1), sys.stdout, os.dup(1)
threads = [threading.Thread(target=load) for _ in range(2)]
for index, thread in enumerate(threads):
    thread.start()
    thread.join(0.5)  # the second begins while the first is asking its driver
for thread in threads:
    while thread.is_alive():
        assert os.path.samestat(os.fstat(1), before[0]), "1 leads elsewhere"
        assert sys.stdout is before[1], "sys.stdout is another"
        thread.join(0.01)
assert os.path.samestat(os.fstat(1), before[0]) and sys.stdout is before[1]
print("the program's own line")
"""


def test_the_library_leaves_the_streams_of_a_program_alone(install_plugin: Any) -> None:
    site = install_plugin("noisy", NOISY)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", LOADED_TWICE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert "the program's own line" in done.stdout.splitlines()


INTERRUPTED_AT = """
import os, signal, sys

class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10):
            pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            {how}

sys.meta_path.insert(0, Finder())
from bitnet_core.cli.program import main
main()
"""


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGINT)", "Interrupted()"])
@pytest.mark.parametrize(
    "module", ["bitnet_core.cli.app", "typer", "bitnet_core.cli.run", "bitnet_hal.discovery.opening", "numpy"]
)
def test_an_interrupt_at_an_import_is_code_130(module: str, how: str) -> None:
    """Also in a destructor, which cannot raise it."""
    code = INTERRUPTED_AT.format(module=module, how=how)
    command = [sys.executable, "-c", code, "run", "--json", "-d", "numpy", "-n", "500", "Once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("seconds", [0, 0.1, 0.4, 0.8, 1.6])
def test_an_interrupt_is_code_130_from_the_first_line_on(terminal: Any, seconds: float) -> None:
    """While it imports, while the driver begins, while it writes."""
    run = terminal(f"exec {ANNOUNCED} run -d noisy -n 500 Once")
    run.read_until("begins\r\n")
    time.sleep(seconds)
    run.interrupt()
    interrupted = time.monotonic()
    run.read_until()
    assert run.code() == 130, run.said
    assert time.monotonic() - interrupted < 15
    assert "Traceback" not in run.said
    assert "Exception ignored" not in run.said


@pytest.mark.parametrize("command", ["run -d noisy -", "chat -d noisy"])
def test_an_interrupt_of_reading_is_code_130(terminal: Any, command: str) -> None:
    run = terminal(f"exec {BITNET} {command}")
    if command.startswith("chat"):
        run.read_until("> ")
        time.sleep(0.3)  # CPython's input() misses a signal between its prompt and its wait for a key
    else:
        time.sleep(1)
    run.interrupt()
    run.read_until()
    assert run.code() == 130, run.said
    assert "Traceback" not in run.said


def test_an_interrupt_does_not_wait_for_a_driver_that_hangs(install_plugin: Any, terminal: Any) -> None:
    install_plugin(
        "hanging", "import time\nBackend.devices = lambda self: print('ASKED', flush=True) or time.sleep(60)"
    )
    run = terminal(f"exec {BITNET} run -d hanging -n 1 Once")
    run.read_until("ASKED")
    run.interrupt()
    interrupted = time.monotonic()
    run.read_until()
    assert run.code() == 130, run.said
    assert time.monotonic() - interrupted < 5

"""`bitnet run` and `bitnet chat` on a terminal: the spinner, whole words at its edge, and nothing of both under -q."""

from __future__ import annotations

import os
import re
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

fcntl, pty, termios = (
    pytest.importorskip(name, reason="terminals of a POSIX system") for name in ("fcntl", "pty", "termios")
)

Terminal = Callable[..., str]
PROGRAM = "from bitnet_core.cli.program import main; main()"
SLOW = f"import bitnet_hal.discovery.opening as o, time\nreal = o.open_device\n\
def slow(*a, **k):\n    time.sleep(4)\n    return real(*a, **k)\no.open_device = slow\n{PROGRAM}"


@pytest.fixture
def terminal() -> Terminal:
    """terminal(*arguments, columns=60, typed="", program=PROGRAM) runs bitnet on a terminal; all that it wrote."""

    def run(*arguments: str, columns: int = 60, typed: str = "", program: str = PROGRAM) -> str:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        child = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(theirs)
        os.write(ours, typed.encode())
        written, end = b"", time.monotonic() + 60
        while select.select([ours], [], [], max(end - time.monotonic(), 0))[0]:
            try:
                more = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            written += more
        if child.poll() is None and time.monotonic() > end:
            child.kill()
        os.close(ours)
        assert child.wait(10) == 0
        return written.decode(errors="replace")

    return run


def test_a_spinner_turns_while_a_device_opens(terminal: Terminal) -> None:
    shown = terminal("run", "Once upon a time", "-n", "4", "-d", "numpy", program=SLOW)
    frames = set(re.findall(r"([⠀-⣿]) starting|(?:\x1b\[[0-9;]*m)([⠀-⣿])", shown))
    assert len(frames) > 2
    assert shown.index("starting") < shown.index("stories on numpy:0")


def test_quiet_shows_the_text_alone(terminal: Terminal) -> None:
    shown = terminal("run", "Once upon a time", "-n", "4", "-d", "numpy", "-q", "--stop", "qqq", program=SLOW)
    assert "starting" not in shown
    assert "stories" not in shown
    assert "Once upon a time" in shown


@pytest.mark.parametrize("columns", [30, 80])
def test_words_of_an_answer_stay_whole(terminal: Terminal, columns: int) -> None:
    said = "Tell me a story about a fox named Mia."
    plain = subprocess.run(
        [sys.executable, "-c", PROGRAM, "chat", "-n", "60", "-d", "numpy"],
        input=f"{said}\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    shown = terminal("chat", "-n", "60", "-d", "numpy", "-q", columns=columns, typed=f"{said}\n/exit\n")
    answer = shown[shown.index(plain.split()[0], shown.index(said) + len(said)) :].partition("\x1b")[0]
    assert answer.split() == plain.split()
    assert max(len(line.rstrip("\r")) for line in answer.split("\n")) <= columns
    assert len(answer.split("\n")) > len(plain.split("\n"))

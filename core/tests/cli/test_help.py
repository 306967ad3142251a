"""Help in groups at any width, short options, completion, and usage errors in the program's own voice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bitnet_core.cli import opening, options
from bitnet_core.cli.help import ELSEWHERE
from bitnet_hal.discovery import registry as registry_module

PROGRAM = [sys.executable, "-c", "from bitnet_core.cli.program import main; main()"]
QWEN3 = Path(__file__).parents[1] / "golden" / "qwen3" / "qwen3-untied" / "PQ2_0.gguf"


def in_a_pipe(*arguments: str, **environment: str) -> str:
    done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", ["run", "chat"])
def test_options_stand_in_groups(bitnet, command: str) -> None:
    shown = bitnet(command, "-h").out
    titles = [line.removesuffix(":") for line in shown.splitlines() if line and not line[0].isspace()]
    groups = [options.PROMPT, options.MODEL, options.SAMPLING, options.THINKING]
    groups += [options.DEVICE, options.CACHE, options.OUTPUT]
    assert [title for title in titles if title in groups] == groups
    assert titles[-1] == "Options"
    assert " range>" not in shown
    named = ("--system", "--raw", "--no-chat", "-c, --context", "-t, --threads", "-q, --quiet", "--no-speed", "-h, ")
    assert [name for name in named if name not in shown] == []


@pytest.mark.parametrize(("columns", "least"), [(60, 50), (80, 70), (110, 100)])
def test_help_keeps_to_the_width(columns: int, least: int) -> None:
    for arguments in (("--help",), ("run", "--help"), ("perplexity", "--help")):
        lines = in_a_pipe(*arguments, COLUMNS=str(columns)).splitlines()
        assert max(map(len, lines)) <= columns
    assert max(map(len, in_a_pipe("run", "-h", COLUMNS=str(columns)).splitlines())) >= least


def test_summaries_are_whole(bitnet) -> None:
    assert "..." not in bitnet("--help").out.partition("Commands:")[2]


def test_ways_to_ask(bitnet) -> None:
    run = bitnet("run", "--help").out
    assert bitnet("run", "-h").out == bitnet("help", "run").out == run
    assert bitnet("-h").out == bitnet("help").out == bitnet().out == bitnet("--help").out
    assert bitnet("-V").out == bitnet("--version").out
    assert bitnet("receipt", "-h").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rnu"], "no such command 'rnu'. Did you mean 'run'? `bitnet --help`"),
        (["run", "x", "--max-token", "3"], "no such option: --max-token"),
        (["run", "x", "-n", "0"], "invalid value for '--max-tokens' / '-n': 0 is not in the range x>=1."),
        (["run", "x", "-n", "many"], "'many' is not a valid whole number. `bitnet run --help`"),
        (["run", "x", "--kv-cache-type", "f8"], "'f8' is not one of 'f16', 'f32', 'int8'"),
        (["run", "x", "y"], "extra argument"),
        (["run", "x", "-t", "0"], "'--threads' / '-t'"),
        (["perplexity"], "missing argument 'FILE'"),
        (["receipt"], "bitnet receipt needs a command"),
        (["help", "nosuch"], "no such command 'nosuch'"),
        *((["run", "x", name, "99"], f"there is no {name} here; {hint}") for name, hint in ELSEWHERE.items()),
    ],
)
def test_a_usage_error_is_one_line(bitnet, arguments: list[str], said: str) -> None:
    found = bitnet(*arguments)
    assert (found.code, found.out) == (2, "")
    assert len(found.err.splitlines()) == 1
    assert found.err.startswith("bitnet: error: ")
    assert said in found.err


def test_what_stands_behind_two_hyphens_is_no_option(bitnet) -> None:
    assert "-ngl" not in bitnet("run", "--nosuch", "--", "-ngl").err


def test_completion() -> None:
    assert "_BITNET_COMPLETE" in in_a_pipe("--show-completion", SHELL="/bin/bash")
    found = in_a_pipe(_BITNET_COMPLETE="complete_bash", COMP_WORDS="bitnet run --th", COMP_CWORD="2")
    assert sorted(found.split()) == ["--think", "--threads"]


def test_threads_reach_the_backend_by_its_variable(bitnet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(options.THREADS_VARIABLE, "2")
    assert bitnet("run", "x", "-n", 1, "-d", "numpy").code == 0
    assert os.environ[options.THREADS_VARIABLE] == "2"
    assert bitnet("run", "x", "-n", 1, "-d", "numpy", "-t", 3).code == 0
    assert os.environ[options.THREADS_VARIABLE] == "3"


def test_quiet_leaves_the_result_and_warnings(bitnet, tmp_path: Path) -> None:
    found = bitnet("run", "Once", "-n", 3, "-q", "--stop", " a", "--stop", " the", "-d", "numpy")
    assert found.out
    assert "stories on" not in found.err
    assert "tokens/s" not in found.err
    assert bitnet("run", "Once", "-n", 1, "-d", "nosuch", "-q").err.startswith("bitnet: error: ")
    assert "stories on" in bitnet("run", "Once", "-n", 1, "-d", "numpy").err


def test_a_model_with_a_template_answers_and_the_shipped_one_goes_on(bitnet) -> None:
    model = ("-m", QWEN3, "-d", "numpy", "-n", 4, "--temperature", 0, "-q")
    answer, raw = (bitnet("run", "hi", *model, *more) for more in ((), ("--raw",)))
    assert answer.out != raw.out
    assert bitnet("run", "hi", *model, "--chat").out == answer.out
    assert bitnet("run", "hi", *model, "--no-chat").out == raw.out
    assert bitnet("run", "hi", *model, "--system", "Be brief").out != answer.out
    assert bitnet("chat", *model, stdin=b"hi\n").out == answer.out
    story, chat = (bitnet("run", "Once upon a time", "-n", 6, "-q", *more).out for more in ((), ("--chat",)))
    assert story == bitnet("run", "Once upon a time", "-n", 6, "-q", "--raw").out != chat
    for more in (("--system", "x"), ("--think",), ("--reasoning-budget", 3)):
        found = bitnet("run", "hi", *model, "--raw", *more)
        assert (found.code, f"{more[0]} " in found.err, "exclude each other" in found.err) == (2, True, True)


@pytest.mark.parametrize("installed", [False, True])
def test_numpy_for_want_of_something_faster_is_told_once(
    bitnet, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    """Under auto alone: who names numpy knows."""

    class Found:
        backends = ("numpy", "cpu") if installed else ("numpy",)
        quarantined = ()

    monkeypatch.setattr(registry_module, "registry", Found)
    assert opening.slow_device(None, "opencl") == opening.slow_device("numpy", "numpy") == ""
    assert opening.slow_device("cpu", "numpy") == ""
    said = opening.slow_device("auto", "numpy")
    assert "numpy is the slow reference" in said
    assert ("bitnet doctor" in said) is installed
    assert ("pip install ./plugins/bitnet-cpu" in said) is not installed

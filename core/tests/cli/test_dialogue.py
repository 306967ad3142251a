"""Input of `bitnet chat`: messages, several lines, commands, and messages that look like commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from bitnet_core.cli.dialogue import COMMANDS, Entry, command_list, read_entry

QWEN3 = Path(__file__).parents[1] / "golden" / "qwen3" / "qwen3-untied" / "PQ2_0.gguf"
MODEL = ("-m", QWEN3, "-d", "numpy", "--temperature", 0)


def entries(*lines: str) -> list[Entry]:
    waiting = iter(lines)
    found = []
    while (entry := read_entry(lambda _: next(waiting, None))) is not None:
        found.append(entry)
    return found


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "/etc/hosts: what is in this file?",
        "/",
        "/ what is it?",
        "//server/share",
        "// a comment",
        "/1 is one",
        "/etc-is a folder",
        "1/2",
        "é/help",
    ],
)
def test_a_message_may_begin_with_a_slash(line: str) -> None:
    assert entries(line) == [Entry(line)]


def test_a_path_of_this_machine_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.exists", ("/srv", "/help").__contains__)
    assert entries("/srv holds files", "/help") == [Entry("/srv holds files"), Entry("", "/help")]
    assert "/help lists" in entries("/home")[0].complaint


def test_a_system_message_may_have_several_lines() -> None:
    assert entries('/system """You are', 'a cat."""', "hello") == [Entry("You are\na cat.", "/system"), Entry("hello")]
    assert entries("/system\tBe brief", '/system """') == [Entry("Be brief", "/system"), Entry("", "/system")]


def test_a_blank_before_it_sends_what_looks_like_a_command() -> None:
    assert entries(" /help", "\t/exit now") == [Entry("/help"), Entry("/exit now")]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (['"""first', 'second"""'], "first\nsecond"),
        (['"""', "  indented", "", "/exit", '"""'], "indented\n\n/exit"),
        (['"""one line"""'], "one line"),
        (['  """x', 'y"""  '], "x\ny"),
        (['"""never closed', "at all"], "never closed\nat all"),
    ],
)
def test_several_lines_are_one_message(lines: list[str], text: str) -> None:
    assert entries(*lines) == [Entry(text)]


def test_nothing_is_no_message() -> None:
    assert entries("", "   ", '""""""', '"""', '"""') == []


def test_commands_and_what_is_none() -> None:
    assert entries("/help", "/CLEAR ", "/system be brief", "/system", "/bye", "/?") == [
        Entry("", "/help"),
        Entry("", "/clear"),
        Entry("be brief", "/system"),
        Entry("", "/system"),
        Entry("", "/exit"),
        Entry("", "/help"),
    ]
    near, far, behind = (entry.complaint for entry in entries("/hepl me", f"/{'x' * 5000}", "/exit strategy"))
    assert "the closest is /help" in near
    assert "/help lists" in far
    assert "Nothing follows /exit" in behind
    assert all("A blank before it sends" in complaint for complaint in (near, far, behind))
    assert all(command in command_list() for command in COMMANDS)


def test_a_mark_before_the_first_line_is_no_part_of_it() -> None:
    assert entries("\ufeff/exit", "\ufeffhello") == [Entry("", "/exit"), Entry("hello")]


def test_the_system_message_may_be_given_or_changed(bitnet) -> None:
    def answers(*options: str, said: bytes) -> list[str]:
        found = bitnet("chat", *MODEL, "-n", 4, "-q", *options, stdin=said)
        assert found.code == 0, found.err
        return found.out.split("\n")

    plain, brief = (answers(*more, said=b"hi\n") for more in ((), ("--system", "Be brief")))
    assert plain != brief
    assert answers(said=b"/system Be brief\nhi\n") == brief
    assert answers("--system", "Be brief", said=b"first\n/system\nhi\n")[1:] == plain
    assert answers("--system", "Be brief", said=b"first\n/clear\nhi\n")[1:] == brief


def test_without_the_chat_template_one_text_goes_on(bitnet) -> None:
    once = bitnet("run", "Once upon a time", "-n", 6, "-q").out.rstrip("\n")
    more = bitnet("run", f"Once upon a time{once} and", "-n", 6, "-q").out
    found = bitnet("chat", "--no-chat", "-n", 6, "-q", stdin=b"Once upon a time\nand\n/system x\n/clear\n")
    assert found.out == f"{once}\n{more}"
    assert "has no system message" in found.err
    assert "Forgotten." in found.err
    refused = bitnet("chat", "--raw", "--system", "x")
    assert (refused.code, "exclude each other" in refused.err) == (2, True)


def test_a_limit_that_ends_an_answer_is_told(bitnet) -> None:
    assert bitnet("chat", *MODEL, "-n", 4, "-q", stdin=b"hi\n").err == "stopped at the limit of 4 tokens (-n)\n"
    found = bitnet("chat", *MODEL, "-c", 32, "-q", stdin=b"hi\n")
    assert "stopped at the end of the context of 32 tokens (--context); /clear forgets" in found.err


def test_the_speed_can_be_left_out(bitnet) -> None:
    found = bitnet("chat", "-n", 2, "-d", "numpy", "--no-speed", stdin=b"hi\n")
    assert "tokens/s" not in found.err
    assert "stories on numpy:0" in found.err
    assert "/help lists the commands" in found.err


def test_text_that_is_utf16_is_told(bitnet) -> None:
    found = bitnet("chat", "-n", 2, "-d", "numpy", stdin="hello\n".encode("utf-16"))
    assert (found.code, "UTF-16" in found.err) == (2, True)

"""Files that are written, streams that are closed or full, odd names: nothing is lost, every failure is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest
from bitnet_core.cli.console import cell, harmless
from bitnet_core.errors import ModelError, ReceiptError
from bitnet_core.formats.open import open_model
from bitnet_hal.errors import BitnetError, UsageError
from bitnet_hal.output import check_output, new_file, new_folder

STORIES = Path(str(files("bitnet_core") / "data" / "stories.gguf"))
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX files and signals")


def model_in(folder: Path) -> Path:
    """A copy of the shipped model that may be overwritten."""
    path = folder / "m.gguf"
    path.write_bytes(STORIES.read_bytes())
    return path


def test_a_receipt_never_takes_the_place_of_the_model(bitnet, tmp_path: Path) -> None:
    model = model_in(tmp_path)
    before = model.read_bytes()
    os.link(model, tmp_path / "other-name")
    for place in (model, tmp_path / "other-name", tmp_path / "." / "m.gguf"):
        for arguments in ([], ["--force"]):
            result = bitnet("run", "x", "-m", model, "-n", 1, "--device", "numpy", "--receipt", place, *arguments)
            assert result.code == 14
            assert "model being read" in result.err
    assert model.read_bytes() == before


@posix
@pytest.mark.parametrize("error", [UsageError, ReceiptError])
def test_links_devices_pipes_and_existing_files_stay(tmp_path: Path, error: type[BitnetError]) -> None:
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    places = [tmp_path / "link", tmp_path / "dangling", tmp_path / "pipe", Path("/dev/null"), tmp_path]
    for path in [*places, tmp_path / "no" / "folder", tmp_path / ("x" * 300)]:
        for force in (False, True):
            with pytest.raises(error), new_file(path, force=force, error=error) as file:
                file.write(b"new")
    with pytest.raises(error, match="--force"):
        check_output(tmp_path / "kept", error=error)
    assert (tmp_path / "kept").read_text() == "kept"
    with new_file(tmp_path / "kept", force=True) as file:
        file.write(b"new")
    assert (tmp_path / "kept").read_text() == "new"

    def stops_half_way() -> None:
        with new_file(tmp_path / "kept", force=True) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stops_half_way()
    assert (tmp_path / "kept").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "kept", "link", "pipe"]


def test_what_appears_at_the_place_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "out"

    def meanwhile() -> None:
        with new_file(path) as file:
            file.write(b"new")
            path.write_text("theirs")

    with pytest.raises(UsageError, match="exists"):
        meanwhile()
    assert path.read_text() == "theirs"


def test_two_writers_of_one_process_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with new_file(path, force=True) as first:
        first.write(b"first")
        with new_file(path, force=True) as second:
            second.write(b"second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


@posix
def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    before = sorted(tmp_path.iterdir())
    for place in ("link", "dangling", "file", "file/in", "x" * 300):
        with pytest.raises(UsageError, match=r"not an empty folder|cannot be written"), new_folder(tmp_path / place):
            pass

    def full() -> None:
        with new_folder(tmp_path / "real") as made:
            (made / "half").write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match=r"No space left on device.*nothing was kept"):
        full()
    assert sorted(tmp_path.iterdir()) == before
    with new_folder(tmp_path / "real") as made:
        (made / "whole").write_text("whole")
    assert (tmp_path / "real" / "whole").read_text() == "whole"
    assert sorted(tmp_path.iterdir()) == before


@posix
def test_conversions_follow_the_rule(bitnet, tmp_path: Path) -> None:
    model = model_in(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for place in ("dangling", "m.gguf"):
        result = bitnet("convert", model, tmp_path / place, "--force")
        assert result.code == 2
    assert (tmp_path / "dangling").is_symlink()
    assert bitnet("bench", "--synthetic", "tiny", "--profile", tmp_path / "dangling").code == 2


@posix
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_conversion_that_is_ended_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    slow = (
        "import sys, time, signal; from bitnet_core.formats.convert import convert as c; real = c.write_gguf\n"
        "def write(*a):\n    real(*a); print('written', file=sys.stderr, flush=True); time.sleep(30)\n"
        "c.write_gguf = write; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "from bitnet_core.cli.app import main; main()"
    )
    command = [sys.executable, "-c", slow, "convert", str(STORIES), str(tmp_path / "out.gguf"), "--to", "i2_s"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"written\n"
        assert list(tmp_path.iterdir())
        number = getattr(signal, name)
        process.send_signal(number)
        started = time.monotonic()
        assert process.wait(20) == 128 + number
    assert time.monotonic() - started < 20
    assert list(tmp_path.iterdir()) == []


@posix
@pytest.mark.parametrize(
    ("redirect", "code", "said"),
    [
        (">/dev/full", 1, "No space left on device"),
        (">&-", 0, ""),
        ("<&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
    ],
)
@pytest.mark.parametrize("command", ["devices --json", "run x -n 2 --device numpy"])
def test_streams_that_are_closed_or_full(redirect: str, code: int, said: str, command: str) -> None:
    line = f"{sys.executable} -c 'from bitnet_core.cli.app import main; main()' {command} {redirect}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@posix
def test_a_name_that_is_no_utf8_is_json_all_the_same(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/m\xff.gguf"
    with open(path, "wb") as file:
        file.write(STORIES.read_bytes())
    main = [sys.executable, "-c", "from bitnet_core.cli.app import main; main()"]
    done = subprocess.run([*main, "inspect", "--json", path], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["file"].endswith("m\udcff.gguf")
    assert subprocess.run([*main, "inspect", path], capture_output=True, timeout=120).returncode == 0


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "", "/dev/null", "/dev/null/x", "/proc/self/mem"])
def test_names_that_no_model_has(name: str) -> None:
    with pytest.raises(ModelError):
        open_model(name)


def test_a_folder_that_cannot_be_read_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path, **_: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", denied)
    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
        open_model(tmp_path)


def test_an_unreadable_model_is_code_3(bitnet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"no model")
    path.chmod(0)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # as for a user who is not root
    for command in (["inspect", path], ["convert", path, tmp_path / "out"]):
        assert bitnet(*command).code == 3
    assert bitnet("receipt", "verify", path).code == 14


def test_a_terminal_is_not_taken_over() -> None:
    hostile = "a\x1b[31m\x9b1m\x07\r\u202eb[red]c"
    assert harmless(hostile) == "a[31m1mb[red]c"
    assert cell(hostile).plain == "a[31m1mb[red]c"
    assert not cell("[red]x[/red]").spans

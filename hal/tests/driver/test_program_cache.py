"""The cache of compiled programs returns a stored program unchanged, or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bitnet_hal.driver.program_cache import ProgramCache
from bitnet_hal.errors import KernelCompileError


def test_a_program_comes_back(tmp_path: Path) -> None:
    cache = ProgramCache("vendor", tmp_path / "deep" / "folder")
    key = cache.key("source", b"options")
    assert cache.load(key) is None
    cache.store(key, b"program")
    assert cache.load(key) == b"program"
    assert ProgramCache("vendor", tmp_path / "deep" / "folder").load(key) == b"program"
    assert [path.suffix for path in (tmp_path / "deep" / "folder").iterdir()] == [".bin"]


def test_each_backend_has_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name, appauthor: str(tmp_path / name))
    assert ProgramCache("vendor").folder == tmp_path / "bitnet" / "vendor"


def test_keys_tell_their_parts_apart() -> None:
    keys = {ProgramCache.key(*parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"))}
    assert len(keys) == 5
    assert ProgramCache.key("a", "b") == ProgramCache.key(b"a", b"b")


@pytest.mark.parametrize("fault", ["cut", "changed", "empty", "of another key", "a folder"])
def test_a_damaged_program_counts_as_absent(tmp_path: Path, fault: str) -> None:
    cache = ProgramCache("vendor", tmp_path)
    key, other = cache.key("one"), cache.key("two")
    cache.store(key, b"program" * 100)
    cache.store(other, b"something else")
    path = tmp_path / f"{key}.bin"
    content = path.read_bytes()
    if fault == "a folder":
        path.unlink()
        path.mkdir()
    else:
        damaged = {"cut": content[:-1], "changed": content[:-1] + b"?", "empty": b""}
        path.write_bytes(damaged.get(fault, (tmp_path / f"{other}.bin").read_bytes()))
    assert cache.load(key) is None
    cache.store(key, b"again")
    assert cache.load(key) == (None if fault == "a folder" else b"again")


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    cache = ProgramCache("vendor", tmp_path, limit=3 * 1032)
    for age, key in enumerate(("oldest", "old", "new")):
        cache.store(key, bytes(1000))
        os.utime(tmp_path / f"{key}.bin", (1000 + age, 1000 + age))
    assert cache.load("oldest") is not None  # and is now the newest
    cache.store("newest", bytes(1000))
    assert [cache.load(key) is not None for key in ("oldest", "old", "new", "newest")] == [True, False, True, True]


def test_what_a_dead_process_left_goes(tmp_path: Path) -> None:
    cache = ProgramCache("vendor", tmp_path)
    for name, age in (("dead.part", 7200), ("alive.part", 0)):
        (tmp_path / name).write_bytes(b"half")
        if age:
            os.utime(tmp_path / name, (1000, 1000))
    cache.store("key", b"program")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alive.part", "key.bin"]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = ProgramCache("vendor", tmp_path / "file" / "folder")
    cache.store("key", b"program")
    assert cache.load("key") is None


WORK = """
import sys
from pathlib import Path
from bitnet_hal.driver.program_cache import ProgramCache

cache = ProgramCache("vendor", Path(sys.argv[1]), limit=20_000)
for turn in range(50):
    key = f"key{(turn + int(sys.argv[2])) % 5}"
    cache.store(key, key.encode() * 1000)
    assert cache.load(key) in (None, key.encode() * 1000)
"""


def test_processes_share_a_folder(tmp_path: Path) -> None:
    """Four processes use the same keys under a limit that deletes some; none reads a partial program."""
    started = [subprocess.Popen([sys.executable, "-c", WORK, str(tmp_path), str(number)]) for number in range(4)]
    assert [process.wait(60) for process in started] == [0, 0, 0, 0]
    assert not list(tmp_path.glob("*.part"))


def test_a_program_that_the_driver_refuses_is_built_again(tmp_path: Path) -> None:
    cache, built = ProgramCache("vendor", tmp_path), []

    def load(binary: bytes) -> str:
        if binary == b"old":
            raise KernelCompileError("not for this driver")
        return binary.decode()

    def build() -> str:
        built.append("new")
        return "new"

    key = cache.key("one")
    cache.store(key, b"old")
    assert [cache.program(key, load, build, str.encode) for _ in range(2)] == ["new", "new"]
    assert built == ["new"]
    assert cache.load(key) == b"new"
    other = cache.key("of a driver without binaries")
    assert [cache.program(other, load, build, lambda program: None) for _ in range(2)] == ["new", "new"]
    assert cache.load(other) is None
    assert built == ["new"] * 3

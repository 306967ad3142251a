"""`bitnet models`: known and cached models, and the data removed by `rm`, never anything else."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bitnet_core.errors import ModelError
from bitnet_core.hub import Reference, cached_models, families, fetch, is_reference, removal, remove
from bitnet_core.hub.families import short_names
from bitnet_hal.errors import UsageError

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up an empty cache of huggingface_hub, for this process and its children."""
    folder = tmp_path / "hf" / "hub"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HF_HOME", str(folder.parent))
    monkeypatch.setattr(fetch.library().constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(folder))
    return folder


def store(cache: Path, repo: str, commit: str, files: dict[str, bytes], refs: tuple[str, ...] = ("main",)) -> Path:
    """Store the files of one revision as huggingface_hub does; return the repository's folder."""
    folder = cache / ("models--" + repo.replace("/", "--"))
    for part in ("blobs", "refs", f"snapshots/{commit}"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        blob = folder / "blobs" / f"{hash((name, data)) & 0xFFFFFFFFFFFF:x}"
        blob.write_bytes(data)
        link = folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    for ref in refs:
        (folder / "refs" / ref).write_text(commit)
    return folder


def bitnet(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from bitnet_core.cli.app import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def answered(answer: bytes, *arguments: str) -> tuple[int, str]:
    """Return exit code and text of a command at a terminal whose user answers its question."""
    ours, theirs = pty.openpty()
    code = "from bitnet_core.cli.app import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    os.write(ours, answer)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the program has ended
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    return process.wait(), shown.decode()


def test_each_model_of_a_cached_repository_is_listed_as_m_takes_it(cache: Path) -> None:
    store(cache, "o/one", OLD, {"m-Q2_0.gguf": b"12345", "m-draft-Q2_0.gguf": b"1", "README.md": b"x"})
    store(cache, "o/two", OLD, {"m-1.7B-Q2_0.gguf": b"1", "m-8B-Q2_0.gguf": b"1234"})
    store(cache, "o/none", OLD, {"pytorch_model.bin": b"1"})
    listed = {model.reference: model.nbytes for model in cached_models()}
    assert listed == {"hf:o/one": 5, "hf:o/two:m-1.7B-Q2_0.gguf": 1, "hf:o/two:m-8B-Q2_0.gguf": 4}
    text = bitnet("models").stdout
    assert all(f"{name}\n" in text for name in listed)


def test_a_repository_is_removed_and_nothing_else(cache: Path, tmp_path: Path) -> None:
    folder = store(cache, "o/one", OLD, {"m-Q2_0.gguf": bytes(3 << 20)})
    other = store(cache, "o/one-more", OLD, {"m-Q2_0.gguf": b"1"})
    outside = tmp_path / "thesis.txt"
    outside.write_text("ten years")
    (folder / "snapshots" / OLD / "link.gguf").symlink_to(outside)
    (folder / "blobs" / "link").symlink_to(outside)
    refused = bitnet("models", "rm", "hf:o/one")
    assert (refused.returncode, folder.exists()) == (2, True)
    assert "3.0 MiB in 2 files of" in refused.stderr
    assert "--yes does it without asking" in refused.stderr
    done = bitnet("models", "rm", "hf:o/one", "--yes")
    assert done.returncode == 0, done.stderr
    assert not folder.exists()
    assert (other / "refs" / "main").exists()
    assert outside.read_text() == "ten years"
    again = bitnet("models", "rm", "hf:o/one", "--yes")
    assert (again.returncode, "nothing of it is in" in again.stderr) == (3, True)


@pytest.mark.parametrize(("answer", "removed"), [(b"y\n", True), (b"n\n", False), (b"\n", False)])
def test_at_a_terminal_it_asks(cache: Path, answer: bytes, removed: bool) -> None:
    folder = store(cache, "o/one", OLD, {"m-Q2_0.gguf": b"1"})
    code, shown = answered(answer, "models", "rm", "hf:o/one")
    assert folder.exists() is not removed
    assert "Traceback" not in shown
    assert code == 0


def test_one_revision_is_removed_with_what_only_it_holds(cache: Path) -> None:
    store(cache, "o/one", OLD, {"m-Q2_0.gguf": b"old", "config.json": b"{}"}, refs=("v1",))
    folder = store(cache, "o/one", NEW, {"m-Q2_0.gguf": b"newer", "config.json": b"{}"})
    remove(removal(Reference.parse("hf:o/one@v1")))
    assert [model.reference for model in cached_models()] == ["hf:o/one"]
    assert sorted(blob.read_bytes() for blob in (folder / "blobs").iterdir()) == [b"newer", b"{}"]


def outside_blob(folder: Path, outside: Path) -> None:
    (folder / "snapshots" / OLD / "x.gguf").symlink_to(outside / "thesis.txt")


def outside_snapshot(folder: Path, outside: Path) -> None:
    moved = outside / "snapshot"
    (folder / "snapshots" / OLD).rename(moved)
    (folder / "snapshots" / OLD).symlink_to(moved)


def outside_repository(folder: Path, outside: Path) -> None:
    folder.rename(outside / "repository")
    folder.symlink_to(outside / "repository")


@pytest.mark.parametrize("twist", [outside_blob, outside_snapshot, outside_repository])
def test_what_links_lead_to_is_never_removed(cache: Path, tmp_path: Path, twist: Callable[[Path, Path], None]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.txt").write_text("ten years")
    store(cache, "o/one", NEW, {"m-Q2_0.gguf": b"new"})
    twist(store(cache, "o/one", OLD, {"m-Q2_0.gguf": b"old"}, refs=("v1",)), outside)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    with pytest.raises(ModelError, match=r"outside of|is a link to|nothing of it"):
        removal(Reference.parse("hf:o/one@v1"))
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


def test_a_file_alone_is_not_removed(cache: Path) -> None:
    store(cache, "o/one", OLD, {"m-Q2_0.gguf": b"old"})
    with pytest.raises(UsageError, match="as a whole: name it as hf:o/one"):
        removal(Reference.parse("hf:o/one:m-Q2_0.gguf"))


def test_short_names_stand_for_references(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_names()["bitnet-2b-4t"] == "hf:microsoft/bitnet-b1.58-2B-4T-gguf"
    for name, reference in short_names().items():
        assert is_reference(name)
        assert str(Reference.parse(name)) == reference
        assert not set(name) & set("/.: ") - {"."}
    (tmp_path / "bitnet-2b-4t").write_text("a file of that name is that file")
    assert not is_reference("bitnet-2b-4t")


def test_known_families_are_shown_with_licence_and_way(cache: Path) -> None:
    text, listed = bitnet("models").stdout, json.loads(bitnet("models", "--json").stdout)
    assert listed["here"] == []
    assert [family["name"] for family in listed["known"]] == [family.name for family in families() if family.runs]
    for family in families():
        head = f"{family.name} ({family.publisher}), {family.sizes}; licence {family.licence}\n"
        assert (head in text) is family.runs
        assert all(f"bitnet pull {name}" in text for name in family.models)

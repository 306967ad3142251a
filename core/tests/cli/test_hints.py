"""Hints of the command line: packages that are missing, models of the hub, and hardware that is not here."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bitnet_core.doctor.hardware import nothing_to_do
from bitnet_core.hub.reference import meant
from bitnet_hal.discovery.known import install_command

ABSENT_DRIVER = """
def absent(self):
    raise BackendUnavailableError("no libvendor.so.1", backend=self.name, hint="Install vendor-driver")
Backend.devices = absent
"""


@pytest.mark.parametrize("arguments", [(), ("-m", "x.gguf", "--port", "3"), ("--help",), ("-m",)])
def test_serve_without_its_package_says_where_it_is(bitnet, arguments: tuple[str, ...]) -> None:
    result = bitnet("serve", *arguments)
    assert result.code == 2
    assert f"serve is in bitnet-server: {install_command('bitnet-server')}" in result.err
    assert "serve" not in bitnet("--help").out


def test_serve_of_a_broken_package_is_not_to_be_installed(bitnet, install_plugin) -> None:
    site = install_plugin("server", source="raise ImportError('no starlette')")
    for file in site.glob("*/METADATA"):
        file.write_text("Metadata-Version: 2.1\nName: bitnet-server\nVersion: 1.2.3\n")
    result = bitnet("serve")
    assert (result.code, "fails to load: `bitnet doctor` says why" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("written", "reference"),
    [
        ("microsoft/bitnet-b1.58-2B-4T-gguf", "hf:microsoft/bitnet-b1.58-2B-4T-gguf"),
        ("owner/repo:file-Q2_0.gguf", "hf:owner/repo:file-Q2_0.gguf"),
        ("owner/repo@v1", "hf:owner/repo@v1"),
        ("https://huggingface.co/owner/repo", "hf:owner/repo"),
        ("hf.co/owner/repo/", "hf:owner/repo"),
        ("https://huggingface.co/owner/repo/resolve/v1/a/b.gguf?download=true", "hf:owner/repo:a/b.gguf@v1"),
        ("https://huggingface.co/owner/repo/blob/main/b.gguf", "hf:owner/repo:b.gguf"),
        ("model", None),
        ("models/file.gguf", None),
        ("/owner/repo", None),
        ("../owner/repo", None),
        ("a/b/c", None),
    ],
)
def test_a_model_of_the_hub_that_was_meant(
    bitnet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: str, reference: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(meant(written)) == str(reference)
    for command in (("run", "-m", written, "-d", "numpy", "Once"), ("inspect", written)):
        result = bitnet(*command)
        assert result.code == 3
        assert (f"did you mean {reference}?" in result.err) is (reference is not None)


def test_a_missing_file_of_a_folder_that_is_there_is_no_model_of_the_hub(
    bitnet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    assert "did you mean" not in bitnet("inspect", "owner/repo").err


def machine(root: Path, *gpus: tuple[str, str]) -> tuple[Path, Path]:
    """A PCI bus of (class, vendor), and an empty folder of device files."""
    for number, (kind, vendor) in enumerate(gpus):
        folder = root / "pci" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "class").write_text(kind + "\n")
        (folder / "vendor").write_text(vendor + "\n")
    (root / "dev").mkdir()
    return root / "pci", root / "dev"


NVIDIA, AMD, NETWORK = ("0x030200", "0x10de"), ("0x030000", "0x1002"), ("0x020000", "0x8086")
VIRTUAL = ("0x030000", "0x1234")


@pytest.mark.parametrize(
    ("gpus", "idle"),
    [
        ((), {"cuda", "rocm", "level-zero", "opencl", "vulkan", "webgpu"}),
        ((NETWORK, VIRTUAL), {"cuda", "rocm", "level-zero", "opencl", "vulkan", "webgpu"}),
        ((NVIDIA,), {"rocm", "level-zero"}),
        ((AMD, NETWORK), {"cuda", "level-zero"}),
    ],
)
def test_hardware_that_is_not_here_is_no_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: tuple[tuple[str, str], ...], idle: set[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    pci, dev = machine(tmp_path, *gpus)
    names = ("cuda", "rocm", "level-zero", "opencl", "vulkan", "webgpu", "cpu", "numpy", "acme")
    assert {name for name in names if nothing_to_do(name, pci, dev)} == idle
    assert nothing_to_do("metal", pci, dev) == "for macOS only: nothing to do"


def test_where_the_system_does_not_tell_the_work_is_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    pci, dev = machine(tmp_path)
    for name in ("dxg", "kfd", "nvhost-gpu"):  # WSL, and GPUs that are on no PCI bus
        (dev / name).touch()
        assert nothing_to_do("cuda", pci, dev) == ""
        (dev / name).unlink()
    assert nothing_to_do("cuda", pci, dev) == "no NVIDIA GPU in this machine: nothing to do"
    for system in ("darwin", "win32"):
        monkeypatch.setattr(sys, "platform", system)
        assert nothing_to_do("webgpu", pci, dev) == ""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert nothing_to_do("cuda", pci, dev) == "for Linux and Windows only: nothing to do"


def test_doctor_says_so_in_a_line(bitnet, install_plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin("metal", ABSENT_DRIVER)
    monkeypatch.setattr(sys, "platform", "linux")
    result = bitnet("doctor")
    assert (result.code, "libvendor" in result.out) == (0, False)
    assert "OUT   metal: for macOS only: nothing to do\n" in result.out
    (entry,) = json.loads(bitnet("doctor", "--json").out)["plugins"]
    assert (entry["reason"], entry["fix"]) == ("no libvendor.so.1", "for macOS only: nothing to do")


LONG = "word " * 40


@pytest.mark.parametrize("command", ["devices -v", "doctor"])
def test_in_a_pipe_each_detail_is_a_line(bitnet, install_plugin, command: str) -> None:
    source = f"infos = [DeviceInfo('good', 0, 'a card', DeviceType.GPU, extra={{'note': {LONG!r}, 'flag': False}})]\n"
    install_plugin("good", source + "Backend.devices = lambda self: infos")
    install_plugin("absent", ABSENT_DRIVER.replace("no libvendor.so.1", LONG))
    lines = bitnet(*command.split()).out.splitlines()
    assert any(line.startswith("      ") and LONG.strip() in line for line in lines)
    assert all(line == line.rstrip() for line in lines)
    assert not any(re.search(r"\S {6,}\S", line) for line in lines)
    if command == "devices -v":
        assert "      flag: no" in lines


@pytest.mark.parametrize("columns", [80, 110])
@pytest.mark.parametrize("command", ["devices -v", "doctor", "models"])
def test_at_a_terminal_lines_are_as_wide_as_it_is(tmp_path: Path, command: str, columns: int) -> None:
    ours, theirs = pty.openpty()
    code = "from bitnet_core.cli.app import main; main()"
    env = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "HF_HOME": str(tmp_path), "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command.split()], stdout=theirs, stderr=subprocess.DEVNULL, env=env
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the program has ended
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait() == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()
    assert 0 < max(map(len, lines)) <= columns

"""Running `bitnet` inside the test process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from bitnet_core.cli.app import main
from bitnet_core.measure import bandwidth


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


Bitnet = Callable[..., Result]


@pytest.fixture(autouse=True)
def little_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench` measures the memory's speed, which takes longer than a tiny model."""
    monkeypatch.setattr(bandwidth, "_HOST_BYTES", 16 << 20)


@pytest.fixture
def bitnet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bitnet:
    """bitnet(*arguments, stdin=b"") runs the command line as a shell would."""

    def run(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["bitnet", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        captured = capsys.readouterr()
        return Result(int(caught.value.code or 0), captured.out, captured.err)

    return run

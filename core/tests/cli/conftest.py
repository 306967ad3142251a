"""Running `bitnet` inside the test process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from bitnet_core.cli.app import main


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


Bitnet = Callable[..., Result]


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

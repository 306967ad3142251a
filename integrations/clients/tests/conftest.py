"""A server for the clients, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

PROGRAM = "from bitnet_core.cli.app import main; main()"


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    command = [sys.executable, "-c", PROGRAM, "serve", "--port", "0", "-d", "cpu", "-n", "32"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = process.stderr.readline().split()[-1]
        try:
            while httpx.get(found + "/health/ready").status_code != 200:
                time.sleep(0.1)
            yield found
        finally:
            process.terminate()

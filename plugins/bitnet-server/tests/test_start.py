"""Imports before the server can answer that it is loading."""

from __future__ import annotations

import json
import subprocess
import sys

_SERVE = """
import json, os, sys
from bitnet_server import service

def start(self):
    print(json.dumps(sorted(sys.modules)), flush=True)
    os._exit(0)

service.Service.start = start
sys.argv = ["bitnet", "serve", "-d", "numpy", "--port", "0"]
from bitnet_core.cli.app import main
main()
"""

_HEAVY = {"numpy", "tokenizers", "jinja2", "llguidance", "bitnet_core.api", "bitnet_core.engine.engine"}


def test_the_server_answers_before_it_imports_what_takes_long() -> None:
    done = subprocess.run([sys.executable, "-c", _SERVE], capture_output=True, text=True, timeout=60, check=False)
    assert "listening on http://127.0.0.1:" in done.stderr, done.stderr
    loaded = set(json.loads(done.stdout))
    assert {"uvicorn", "starlette", "bitnet_server.app"} <= loaded
    assert not loaded & _HEAVY

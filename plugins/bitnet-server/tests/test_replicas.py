"""One model on several devices behind one port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest
from bitnet_core.api.replicas import ReplicaOpener, SeveralDevices, load_replicas
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.loading import LoadOptions
from bitnet_hal.discovery.registry import registry
from bitnet_hal.discovery.request import parse_requests

COMPLETIONS = "/v1/completions"


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two devices that compute with numpy."""
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda,rocm")
    registry.cache_clear()
    yield
    registry.cache_clear()


def model(devices: str) -> Any:
    """Open the shipped model on several devices."""
    opener = ReplicaOpener(None, LoadOptions(), EngineOptions(stream_interval=0.02))
    return lambda: load_replicas(opener, SeveralDevices(parse_requests(devices)))


def wait_for(served: Any, states: list[str]) -> None:
    with served.client() as client:
        for _ in range(1000):
            found = client.get("/props").json()["devices"]
            if [one["state"] for one in found] == states:
                return
            time.sleep(0.02)
    raise AssertionError(found)


def ask(client: httpx.Client, at: int, tokens: int = 8) -> str:
    fields = [{"temperature": 0}, {"temperature": 0.9, "seed": 3, "top_k": 20}][at % 2]
    body = {"prompt": f"The {['cat', 'dog'][at % 2]} said", "max_tokens": tokens, "ignore_eos": True, **fields}
    answer = client.post(COMPLETIONS, json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def by_device(client: httpx.Client, name: str) -> dict[str, float]:
    lines = re.findall(rf'^bitnet:{name}{{device="([^"]*)".*}} (\S+)$', client.get("/metrics").text, re.MULTILINE)
    return {device: float(value) for device, value in lines}


def test_texts_are_those_of_one_device_and_figures_are_by_device(serve: Any, server: Any) -> None:
    with server.client() as one:
        expected = [ask(one, at) for at in range(2)] * 2
    with serve(model("cuda:0,rocm:0")) as served, served.client() as client:
        wait_for(served, ["ready", "ready"])
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda at: ask(client, at), range(4))) == expected
        props = client.get("/props").json()
        assert [one["device"] for one in props["devices"]] == ["cuda:0", "rocm:0"]
        assert props["device"] == "fake cuda device (numpy) + fake rocm device (numpy)"
        assert props["total_slots"] == 64
        tokens = by_device(client, "device_generated_tokens_total")
        assert sum(tokens.values()) == 4 * 8
        assert by_device(client, "device") == {"cuda:0": 1, "rocm:0": 1}
        assert by_device(client, "device_requests") == {"cuda:0": 0, "rocm:0": 0}
        assert any("cuda:0 (fake cuda device (numpy)) and others" in line for line in served.told)


def test_a_lost_device_changes_no_text(serve: Any, server: Any) -> None:
    with server.client() as one:
        expected = [ask(one, at, 30) for at in range(2)] * 2
    with serve(model("cuda:0,rocm:0")) as served, served.client() as client:
        wait_for(served, ["ready", "ready"])
        first = served.service.replicas.replicas[0]
        with ThreadPoolExecutor(4) as pool:
            texts = pool.map(lambda at: ask(client, at, 30), range(4))
            while not any(request.generated_tokens for request in list(first.requests)):
                time.sleep(0.002)
            os.kill(first.engine.device.pid, signal.SIGKILL)
            assert list(texts) == expected
        wait_for(served, ["away", "ready"])
        assert by_device(client, "device") == {"cuda:0": 0, "rocm:0": 1}
        assert by_device(client, "handovers_total")["cuda:0"] > 0
        assert client.get("/health/ready").status_code == 200
        assert client.get("/props").json()["devices"][0]["reason"].endswith("has ended (SIGKILL)")
        assert ask(client, 0, 30) == expected[0]
        served.idle()
        for _ in range(500):
            if any("cuda:0 takes no requests: " in line for line in served.told):
                break
            time.sleep(0.02)
        assert any(line.endswith("has ended (SIGKILL)") for line in served.told)


def test_a_named_device_that_is_not_there_ends_the_server(serve: Any) -> None:
    with serve(model("cuda:0,cuda:7"), loaded=False) as served:
        for _ in range(1000):
            if served.models.error is not None:
                break
            time.sleep(0.02)
        assert "there is no device cuda:7" in str(served.models.error)
        assert not served.models.ready


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no groups of processes")
def test_ctrl_c_lets_texts_finish_and_ends_every_process() -> None:
    """A terminal sends it to the processes of the devices too."""
    program = "from bitnet_core.cli.app import main; main()"
    command = [sys.executable, "-c", program, "serve", "--port", "0", "-d", "cuda:0,rocm:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stderr is not None
            url = process.stderr.readline().split()[-1]
            with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
                while [one["state"] for one in client.get("/props").json().get("devices", [])] != ["ready"] * 2:
                    time.sleep(0.05)
                children = psutil.Process(process.pid).children()
                assert sum("worker_process" in str(child.cmdline()) for child in children) == 2
                body = {"prompt": "The cat", "max_tokens": 60, "ignore_eos": True, "stream": True}
                with client.stream("POST", COMPLETIONS, json=body) as answer:
                    lines = answer.iter_lines()
                    next(lines)
                    os.killpg(process.pid, signal.SIGINT)
                    rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert process.wait(20) == 0
            assert psutil.wait_procs(children, 5)[1] == []
        finally:
            process.kill()

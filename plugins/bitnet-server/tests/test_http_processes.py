"""Several HTTP processes on one port, which give their requests to one queue."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is one HTTP process elsewhere")

COMPLETIONS = "/v1/completions"
TRIES = 4
"""Connections, of which each process gets two."""


@pytest.fixture(scope="module", autouse=True)
def fakes() -> Iterator[None]:
    """Two devices that compute with numpy, on a machine that seems to have cores for two further processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BITNET_GPU_FAKE", "cuda,rocm")
        patch.setattr(os, "cpu_count", lambda: 8)
        registry.cache_clear()
        yield
    registry.cache_clear()


def model(devices: str = "cuda:0,rocm:0") -> Any:
    opener = ReplicaOpener(None, LoadOptions(), EngineOptions(stream_interval=0.02))
    return load_replicas(opener, SeveralDevices(parse_requests(devices)))


def http_processes(process: psutil.Process | None = None) -> list[psutil.Process]:
    children = (process or psutil.Process()).children()
    alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if "http_process" in str(child.cmdline())]


OTHERS: set[int] = set()
"""Processes of a server that another test uses."""


def own_processes() -> list[psutil.Process]:
    return [process for process in http_processes() if process.pid not in OTHERS]


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def serving(process: psutil.Process) -> int:
    """Return the number of HTTP processes that have or had connections."""
    return sum(bool(child.net_connections()) for child in http_processes(process))


@pytest.fixture(scope="module")
def several(serve: Any) -> Iterator[Any]:
    """A server with two further HTTP processes, which no test changes."""
    with serve(model) as served:
        until(lambda: served.models.further.ready == 2)
        yield served


@pytest.fixture
def own(serve: Any) -> Iterator[Any]:
    """Such a server of a test's own."""
    for server in http_processes():  # of the server above, if it runs
        OTHERS.add(server.pid)
    with serve(model) as served:
        until(lambda: served.models.further.ready == 2)
        yield served


def each(served: Any, ask: Callable[[httpx.Client], Any]) -> list[Any]:
    """Ask on connections of their own, one after the other."""
    found = []
    for _ in range(TRIES):
        with served.client() as client:
            found.append(ask(client))
    return found


def counted(client: httpx.Client, name: str) -> float:
    lines = re.findall(rf"^bitnet:{name}(?:{{.*}})? (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return sum(map(float, lines))


def document(client: httpx.Client, **fields: Any) -> Any:
    answer = client.post(COMPLETIONS, json={"prompt": "The cat said", "max_tokens": 6, "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def test_answers_are_those_of_one_process_and_metrics_are_sums(several: Any, server: Any, events: Any) -> None:
    fields: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "seed": 3, "top_k": 20, "logprobs": 2, "n": 2},
        {"echo": True, "logprobs": 1},
        {"response_format": {"type": "json_object"}, "max_tokens": 12},
        {"stop": [" "]},
    ]
    with server.client() as one:
        expected = [document(one, **more) for more in fields]
        streamed = events(one, COMPLETIONS, {"prompt": "The cat", "max_tokens": 5, "temperature": 0})[0]
    for more, choices in zip(fields, expected, strict=True):
        assert each(several, lambda client, more=more: document(client, **more)) == [choices] * TRIES
    with several.client() as client:
        texts = len(fields) * TRIES + TRIES  # n is 2 once
        assert counted(client, "request_success_total") == texts
        assert counted(client, "e2e_request_latency_seconds_count") == texts
        own = {sample.labels["path"] for sample in next(iter(several.models.metrics.http.collect())).samples}
        assert COMPLETIONS not in own  # the other processes have answered them
        assert counted(client, "http_requests_total") > len(fields) * TRIES
        again = events(client, COMPLETIONS, {"prompt": "The cat", "max_tokens": 5, "temperature": 0})[0]
    texts = [[choice["text"] for chunk in found for choice in chunk["choices"]] for found in (streamed, again)]
    assert "".join(texts[0]) == "".join(texts[1])
    several.idle()


def test_everything_else_is_answered_by_the_first_process(several: Any) -> None:
    body = {"input": "Hello", "max_output_tokens": 4, "temperature": 0}
    with several.client() as client:
        kept = client.post("/v1/responses", json=body).json()["id"]
    assert each(several, lambda client: client.get(f"/v1/responses/{kept}").status_code) == [200] * TRIES
    assert {str(client["devices"]) for client in each(several, lambda client: client.get("/props").json())}
    assert each(several, lambda client: client.get("/nothing").status_code) == [404] * TRIES
    assert each(several, lambda client: client.get("/health/ready").status_code) == [200] * TRIES
    long = {"content": "x" * (17 << 20)}
    answers = each(several, lambda client: client.post("/tokenize", json=long).status_code)
    assert answers == [413] * TRIES


def test_errors_are_those_of_one_process(several: Any, server: Any) -> None:
    bodies = [
        {"prompt": []},
        {"prompt": "The cat " * 2000},
        {"prompt": "a", "model": "other"},
        {"prompt": "a", "n": 500},
    ]
    for body in bodies:
        with server.client() as one:
            status = one.post(COMPLETIONS, json=body).status_code
        assert status >= 400
        found = each(several, lambda client, body=body: client.post(COMPLETIONS, json=body))
        assert {answer.status_code for answer in found} == {status}
        assert len({answer.json()["error"]["message"] for answer in found}) == 1


def leave(port: int) -> None:
    """Ask for a long stream, and disconnect at its first text."""
    body = b'{"prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true}'
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + body)
        found = b""
        while b"data:" not in found:
            found += connection.recv(1000)


def test_clients_that_leave_free_their_places(several: Any) -> None:
    for _ in range(TRIES // 2):
        leave(several.port)
    several.idle()
    with several.client() as client:
        assert counted(client, "requests_cancelled_total") == TRIES // 2


@pytest.mark.slow
def test_the_limit_of_the_queue_is_one_for_all(serve: Any) -> None:
    def one_slot() -> Any:
        opener = ReplicaOpener(None, LoadOptions(), EngineOptions(stream_interval=0.02, max_sequences=1))
        return load_replicas(opener, SeveralDevices(parse_requests("cuda:0,rocm:0")))

    with serve(one_slot, max_queue=1) as served, ThreadPoolExecutor(3) as pool:
        until(lambda: served.models.further.ready == 2)
        until(lambda: served.service.slots == 2)
        body = {"prompt": "Once", "max_tokens": 120, "ignore_eos": True}

        def ask(_: int) -> int:
            with served.client() as client:
                return client.post(COMPLETIONS, json=body).status_code

        running = pool.map(ask, range(3))
        until(lambda: served.service.active == 3)
        assert each(served, lambda client: client.post(COMPLETIONS, json=body).status_code) == [429] * TRIES
        assert list(running) == [200] * 3


def test_a_process_that_is_killed_ends_its_texts_only_and_is_replaced(own: Any) -> None:
    process = own_processes()[0]
    body = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True}

    def ask(_: int) -> int:
        with own.client() as client:
            try:
                return client.post(COMPLETIONS, json=body).status_code
            except httpx.TransportError:
                return 0

    with ThreadPoolExecutor(TRIES) as pool:
        asked = pool.map(ask, range(TRIES))
        until(lambda: own.service.active == TRIES)
        assert own.service.counts.active_elsewhere == TRIES
        process.kill()
        assert sorted(asked) == [0] * (TRIES // 2) + [200] * (TRIES // 2)
    own.idle()
    until(lambda: own.models.further.ready == 2)
    assert process not in own_processes()
    assert len(each(own, document)) == TRIES


@pytest.mark.slow
def test_unloading_ends_the_processes_after_their_texts(own: Any) -> None:
    body = {"prompt": "Once", "max_tokens": 150, "ignore_eos": True}
    with ThreadPoolExecutor(TRIES) as pool:

        def ask(_: int) -> int:
            with own.client() as client:
                return client.post(COMPLETIONS, json=body).status_code

        asked = [pool.submit(ask, at) for at in range(TRIES)]
        until(lambda: own.service.active == TRIES)
        with own.client() as client:
            assert client.post("/models/unload", json={"model": "stories"}).status_code == 200
        assert [one.result() for one in asked] == [200] * TRIES
    until(lambda: not own_processes())
    with own.client() as client:
        assert document(client)  # it is loaded again


def test_ctrl_c_lets_the_texts_of_every_process_finish() -> None:
    program = "import os; os.cpu_count = lambda: 8; from bitnet_core.cli.app import main; main()"
    command = [sys.executable, "-c", program, "serve", "--port", "0", "-d", "cuda:0,rocm:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stderr is not None
            url = process.stderr.readline().split()[-1]
            own = psutil.Process(process.pid)
            with contextlib.ExitStack() as stack:

                def connects() -> bool:
                    client = stack.enter_context(httpx.Client(base_url=url, timeout=60, trust_env=False))
                    return client.get("/health") is not None and serving(own) == 2

                until(connects)
            children = own.children(recursive=True)
            body = {"prompt": "The cat", "max_tokens": 60, "ignore_eos": True, "stream": True}

            def ask(_: int) -> str:
                with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
                    return client.post(COMPLETIONS, json=body).text[-16:]

            with ThreadPoolExecutor(8) as pool:
                asked = [pool.submit(ask, at) for at in range(8)]
                with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
                    until(lambda: client.get("/props").json()["active_requests"] == 8)
                os.killpg(process.pid, signal.SIGINT)
                assert [one.result() for one in asked] == ["\n\ndata: [DONE]\n\n"] * 8
            assert process.wait(20) == 0
            assert psutil.wait_procs(children, 5)[1] == []
        finally:
            process.kill()


def test_one_gpu_gets_processes_once_it_serves_many_requests(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitnet_server.http_processes._MANY", 3)
    for server in http_processes():
        OTHERS.add(server.pid)

    def ask(_: int) -> Any:
        with served.client() as client:
            return document(client, max_tokens=60)[0]["text"]

    with serve(lambda: model("cuda:0")) as served, ThreadPoolExecutor(4) as pool:
        alone = ask(0)
        time.sleep(1.5)  # the server has looked meanwhile
        assert not own_processes()
        asked: list[Any] = []
        until(lambda: asked.extend(pool.map(ask, range(4))) or served.models.further.ready == 2)
        assert set(asked) == {alone}
        with served.client() as client:
            assert document(client, max_tokens=60)[0]["text"] == alone
            assert serving(psutil.Process()) == 1

"""Loading, many clients, clients that leave, a full queue, a lost device, the end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bitnet_core
import httpx
import psutil
import pytest
from bitnet_core.structured import MatcherConstraint
from bitnet_hal.errors import DeviceLostError, GpuError
from bitnet_server import streams

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "temperature": 0}


def model(**options: Any) -> Any:
    return lambda: bitnet_core.load(None, "numpy", stream_interval=0.02, **options)


def leave(port: int, body: dict[str, Any], after: bytes) -> None:
    """Ask, read until `after` has come (b"": until the text is under way for a while), and hang up."""
    content = json.dumps(body).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall(head.encode() + content)
        found = b""
        while after and after not in found:
            found += connection.recv(4096)
        time.sleep(0.3)


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"bitnet:{name}"))


def test_loading(serve: Any) -> None:
    go = threading.Event()

    def load() -> Any:
        go.wait(20)
        return model()()

    with serve(load, loaded=False) as served, served.client() as client:
        for path in ("/health", "/health/ready", "/v1/models"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["error"]["message"] in ("loading model", "not ready")) == (
                503,
                True,
            )
        assert client.get("/health/live").status_code == 200
        asked = client.post(COMPLETIONS, json=LONG)
        assert (asked.status_code, asked.headers["retry-after"]) == (503, "1")
        go.set()
        while client.get("/health").status_code != 200:
            time.sleep(0.05)
        assert client.get("/health/ready").json() == {"status": "ok"}
        while not any("stories on numpy:0" in line for line in served.told):
            time.sleep(0.05)


def test_many_clients_get_the_texts_they_would_get_alone(server: Any) -> None:
    prompts = [f"The {animal} said" for animal in ("cat", "dog", "fox", "bear", "bird", "mouse", "hen", "pig")]
    fields = [{"temperature": 0}, {"temperature": 0.9, "seed": 3, "top_k": 20}, {"temperature": 1.2, "seed": 4}]
    with server.client() as client:

        def ask(at: int) -> str:
            body = {"prompt": prompts[at % 8], "max_tokens": 10, **fields[at % 3]}
            return str(client.post(COMPLETIONS, json=body).json()["choices"][0]["text"])

        expected = [ask(at) for at in range(24)]
        with ThreadPoolExecutor(24) as pool:
            assert list(pool.map(ask, range(24))) == expected
    server.idle()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(server: Any, stream: bool) -> None:
    with server.client() as client:
        before = metric(client, "requests_cancelled_total")
        leave(server.port, {**LONG, "stream": stream}, b"data:" if stream else b"")
        server.idle()
        assert metric(client, "requests_cancelled_total") == before + 1


def test_clients_that_leave_at_random_leave_nothing_behind(server: Any) -> None:
    """A few seconds of what `benchmarks/server.py --soak` does for half an hour."""
    rng = random.Random(5)
    counts = {"left": 0, "answered": 0}

    async def ask(stream: bool, leave: bool) -> None:
        fields = {"prompt": "Once", "max_tokens": 400 if leave else 4, "stream": stream, "temperature": 1.0}
        body = json.dumps(fields).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\n\r\n".encode() + body)
        if leave:
            await asyncio.sleep(rng.random() * 0.3)
            counts["left"] += 1
        else:
            answer = await reader.read()
            assert b" 200 OK" in answer[:20], answer
            assert b'"error"' not in answer
            counts["answered"] += 1
        writer.close()

    async def client(number: int) -> None:
        for turn in range(2):
            await ask(stream=rng.random() < 0.5, leave=(number + turn) % 2 == 0)

    async def main() -> None:
        await asyncio.gather(*map(client, range(8)))

    descriptors = psutil.Process().num_fds()
    asyncio.run(main())
    server.idle()
    assert counts == {"left": 8, "answered": 8}
    end = time.monotonic() + 10
    while psutil.Process().num_fds() > descriptors:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_queue_is_bounded_and_those_who_leave_it_are_forgotten(serve: Any, events: Any) -> None:
    with serve(model(max_sequences=1), max_queue=1, keep_alive=0.05) as served, served.client() as client:
        with client.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as first:
            words = first.iter_bytes()
            next(words)
            waiting = threading.Thread(target=leave, args=(served.port, {**LONG, "stream": True}, b": keep-alive"))
            waiting.start()
            while served.service.active < 2:
                time.sleep(0.01)
            refused = client.post(COMPLETIONS, json=LONG)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            waiting.join(20)
            while served.service.active > 1:
                time.sleep(0.01)
        served.idle()


def test_the_head_of_a_stream_that_waits_comes_alone(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_HEAD_SECONDS", 0.01)
    with serve(model(max_sequences=1)) as served, served.client() as client, served.client() as other:
        with client.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as first:
            words = first.iter_bytes()  # kept: the connection closes with it
            next(words)
            with other.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as second:
                assert second.status_code == 200
                assert [kind for kind, _ in served.service.replicas.requests()] == ["running", "waiting"]
        served.idle()


def test_waiting_too_long_is_told(serve: Any, events: Any) -> None:
    with serve(model(max_sequences=1), queue_timeout=0.2, request_timeout=2.0, keep_alive=0.05) as served:
        with served.client() as client, client.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as first:
            words = first.iter_bytes()
            next(words)
            waited = client.post(COMPLETIONS, json=LONG)
            assert (waited.status_code, waited.headers["retry-after"]) == (503, "10")
            documents, done = events(client, COMPLETIONS, LONG)
            assert (documents[-1]["error"]["type"], done) == ("service_unavailable", False)
        served.idle()


def test_an_error_in_the_middle_is_an_event_without_done(
    server: Any, client: httpx.Client, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([False] * 3)

    def mask(self: Any, before: Any = MatcherConstraint.mask) -> Any:
        if next(left, True):
            raise GpuError("a secret of the machine")
        return before(self)

    monkeypatch.setattr(MatcherConstraint, "mask", mask)
    body = {"prompt": "a", "regex": "[a-z]{20}", "max_tokens": 30}
    neighbour = {"prompt": "The cat said", "max_tokens": 20, "temperature": 0}
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(lambda: client.post(COMPLETIONS, json=neighbour))
        documents, done = events(client, COMPLETIONS, body)
        assert beside.result().status_code == 200
    assert not done
    assert documents[-1]["error"]["type"] == "server_error"
    assert "secret" not in str(documents)
    assert client.post(COMPLETIONS, json=body).status_code == 500
    server.idle()


def test_a_lost_device_fails_cleanly(serve: Any, events: Any) -> None:
    with serve(model()) as served, served.client() as client:
        inner = served.service.model.engine.device
        with client.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)

            def lose(*_: Any) -> None:
                raise DeviceLostError("fell off the bus", backend="numpy")

            inner.replay = lose
            last = [line for line in lines if line.startswith("data:")][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["type"] == "service_unavailable"
        assert client.get("/health/ready").status_code == 503
        assert client.post(COMPLETIONS, json=LONG).status_code == 503
        for _ in range(200):
            if not served.models.active and served.models.leaving:
                break
            time.sleep(0.02)
        assert served.models.leaving


def test_refusals_are_counted_by_reason(client: httpx.Client) -> None:
    refused = [("context_length_exceeded", 400), ("model_not_found", 404), ("unknown_url", 404)]
    names = [f'requests_rejected_total{{reason="{code}",status="{status}"}}' for code, status in refused]
    before = [metric(client, name) for name in names]
    client.post(COMPLETIONS, json={"prompt": "x " * 5000})
    client.post("/api/chat", json={"model": "llama3", "messages": [{"role": "user", "content": "x"}]})
    client.get("/nowhere")
    after = [metric(client, name) for name in names]
    assert [late - early for early, late in zip(before, after, strict=True)] == [1, 1, 1]


def test_the_device_and_its_memory_are_told(server: Any, client: httpx.Client) -> None:
    client.post(COMPLETIONS, json={"prompt": "Once upon a time there was a dog. " * 20, "max_tokens": 3})
    text = client.get("/metrics").text
    assert 'bitnet:device{device="numpy:0",model_name="stories"} 1.0' in text
    assert metric(client, 'memory_bytes{model_name="stories",use="weights"}') > 100_000
    assert metric(client, 'memory_bytes{model_name="stories",use="kv_cache"}') > 0
    assert metric(client, "cached_tokens") > 0
    assert "# TYPE bitnet:fallbacks_total counter" in text
    model = server.service.model
    kept = model.summary
    model._summary = kept.moved_to(kept.selected, "lost")
    try:
        assert metric(client, "fallbacks_total") == 1
    finally:
        model._summary = kept


def test_figures(server: Any, client: httpx.Client) -> None:
    client.post(COMPLETIONS, json={"prompt": "Once", "max_tokens": 3})
    client.get("/secret-path")
    text = client.get("/metrics").text
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_preemptions_total",
        "request_success_total",
        "time_to_first_token_seconds_bucket",
        "time_per_output_token_seconds_count",
        "e2e_request_latency_seconds_sum",
        "request_queue_time_seconds_sum",
        "request_prefill_time_seconds_sum",
        "request_decode_time_seconds_sum",
        "request_prompt_tokens_sum",
        "request_generation_tokens_sum",
        "iteration_tokens_total_sum",
        "build_info",
    ):
        assert f"bitnet:{name}{{" in text, name
    assert 'bitnet:http_requests_total{path="other",status="404"}' in text
    assert "secret-path" not in text
    assert metric(client, "generation_tokens_total") >= 3


def test_every_figure_of_the_statistics_is_exported(serve: Any) -> None:
    """A number that `Model.stats` has and a scrape does not was forgotten."""
    names = {
        "running": "num_requests_running",
        "waiting": "num_requests_waiting",
        "cache_use": "kv_cache_usage_perc",
        "cached_tokens": "cached_tokens",
        "generated_tokens": "generation_tokens_total",
        "prefix_queries": "prefix_cache_queries_total",
        "prefix_hits": "prefix_cache_hits_total",
        "preemptions": "num_preemptions_total",
        "draft_steps": "spec_decode_num_drafts_total",
        "draft_tokens": "spec_decode_num_draft_tokens_total",
        "accepted_tokens": "spec_decode_num_accepted_tokens_total",
    }
    derived = {"prefill_seconds", "decode_seconds", "seconds_per_token", "moved_bytes_per_token", "gpu_share"}
    with serve(model()) as served, served.client() as client:
        client.post(COMPLETIONS, json={"prompt": "Once upon a time", "max_tokens": 4})
        served.idle()
        counts = served.service.model.engine.scheduler.counts
        counts.update((name, 100 + number) for number, name in enumerate(counts))  # no two are the same
        stats = served.service.model.stats()
        figures = {name: value for name, value in stats.items() if isinstance(value, int | float)}
        text = client.get("/metrics").text
    exported = dict(re.findall(r"^bitnet:(\w+)\{model_name=\"[^\"]*\"\} (\S+)$", text, re.MULTILINE))
    for name in figures.keys() - derived:
        assert float(exported[names.get(name, f"{name}_total")]) == figures[name], name
    drafted = float(counts["draft_tokens"])
    assert f'bitnet:speculation_draft_tokens_total{{kind="lookup",model_name="stories"}} {drafted}' in text
    launches = sum(stats["kernel_launches"].values())
    assert f'bitnet:kernel_launches_total{{device="numpy:0",model_name="stories"}} {float(launches)}' in text


PROGRAM = "from bitnet_core.cli.app import main; main()"


@contextmanager
def started(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """`bitnet serve` in a process of its own, and a client; it listens before the model is loaded."""
    command = [sys.executable, "-c", PROGRAM, "serve", "--port", "0", "-d", "numpy", *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "listening on http://127.0.0.1:" in line, line
            with httpx.Client(base_url=line.split()[-1], timeout=60, trust_env=False) as client:
                while client.get("/health/ready").status_code != 200:
                    time.sleep(0.05)
                yield process, client
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
@pytest.mark.parametrize(("tokens", "timeout", "complete"), [(30, 30, True), (900, 0.3, False)])
def test_sigterm_lets_texts_finish(tokens: int, timeout: float, complete: bool) -> None:
    with started("--drain-timeout", timeout) as (process, client):
        body = {**LONG, "max_tokens": tokens, "stream": True}
        with client.stream("POST", COMPLETIONS, json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            refused = client.post(COMPLETIONS, json=LONG)
            assert (refused.status_code, refused.headers["x-should-retry"]) == (503, "false")
            assert client.get("/props").json()["health"] == "draining"  # the chat page says so
            rest = [line for line in lines if line]
        assert (rest[-1] == "data: [DONE]") == complete
        if not complete:
            assert json.loads(rest[-1].removeprefix("data: "))["error"]["type"] == "service_unavailable"
        assert process.wait(20) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_a_second_signal_ends_at_once() -> None:
    with started() as (process, client), client.stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as answer:
        lines = answer.iter_lines()  # kept: the connection closes with it
        next(lines)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert process.wait(10) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no groups of processes")
def test_ctrl_c_while_the_model_is_loaded_ends_every_process() -> None:
    command = [sys.executable, "-c", PROGRAM, "serve", "--port", "0", "-d", "numpy"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stderr is not None
            process.stderr.readline()
            while not (children := psutil.Process(process.pid).children()):
                time.sleep(0.001)
            while os.getpgid(children[0].pid) == process.pid:  # it has just been forked
                time.sleep(0.001)
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(20) == 0
            assert psutil.wait_procs(children, 5)[1] == []
        finally:
            process.kill()


def test_what_stands_in_the_way(tmp_path: Path) -> None:
    missing = subprocess.run(
        [sys.executable, "-c", PROGRAM, "serve", "--port", "0", "-m", str(tmp_path / "none.gguf")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (missing.returncode, "no such file" in missing.stderr) == (3, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-c", PROGRAM, "serve", "--port", str(port)]
        busy = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (busy.returncode, "cannot listen" in busy.stderr) == (2, True)
    assert "Traceback" not in missing.stderr + busy.stderr


def test_what_takes_long_to_import_waits_until_the_server_listens() -> None:
    late = ("bitnet_core.api", "bitnet_core.formats.open", "jinja2", "llguidance", "huggingface_hub", "safetensors")
    code = (
        "import os, socket, sys; sys.argv = ['bitnet', 'serve', '--port', '0']\n"
        "def listen(*_):\n"
        f"    print([m for m in {late!r} if m in sys.modules], flush=True)\n    os._exit(0)\n"
        "socket.socket.listen = listen\n"
        "from bitnet_core.cli.app import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

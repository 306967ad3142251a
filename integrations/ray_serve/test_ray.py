"""The deployment on Ray itself: an answer, a stream, a client that leaves."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import bitnet_ray  # found by the line above
import ray
from ray import serve

ASKED = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    environment = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    serve.start(http_options={"host": "127.0.0.1", "port": 8765})
    serve.run(bitnet_ray.build({"device": "cpu", "sequences": 4, "cpus": 0.5}))
    with httpx.Client(base_url="http://127.0.0.1:8765", timeout=60, trust_env=False) as made:
        yield made
    serve.shutdown()
    ray.shutdown()


def test_answers_and_streams_are_the_same(client: httpx.Client) -> None:
    assert client.get("/v1/models").json()["data"][0]["id"] == "stories"
    whole = client.post("/v1/chat/completions", json={**ASKED, "max_tokens": 8}).json()
    text = whole["choices"][0]["message"]["content"]
    chunks = []
    with client.stream("POST", "/v1/chat/completions", json={**ASKED, "max_tokens": 8, "stream": True}) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines[:-1]]
    assert "".join(chunks) == text


def test_a_client_that_leaves_frees_its_place(client: httpx.Client) -> None:
    body = {**ASKED, "max_tokens": 900, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
    end = time.monotonic() + 15
    while 'num_requests_running{model_name="stories"} 0.0' not in client.get("/metrics").text:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert 'requests_cancelled_total{model_name="stories"} 1.0' in client.get("/metrics").text


def test_errors_keep_their_status(client: httpx.Client) -> None:
    assert client.post("/v1/chat/completions", json={"messages": []}).status_code == 400
    assert client.get("/health/ready").status_code == 200

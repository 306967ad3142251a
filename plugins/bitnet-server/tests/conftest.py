"""A server on a free port, with the model that ships with the package on the numpy device."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two devices that share few cores wait for each other's threads

import bitnet_core
import httpx
import pytest
from bitnet_server import run as run_module
from bitnet_server.app import make_app
from bitnet_server.models import Models
from bitnet_server.served_model import ServedModel
from bitnet_server.service import Service
from bitnet_server.settings import Settings


@dataclass
class Served:
    """A running server, seen from outside and inside."""

    url: str
    models: Models
    told: list[str]
    stop: Callable[[], None]

    @property
    def service(self) -> Service:
        """The first model's."""
        service = self.models.served[0].service
        assert service is not None
        return service

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, **options)

    def idle(self, seconds: float = 10) -> None:
        """Wait until no text is under way, and every place is free."""
        end = time.monotonic() + seconds
        while True:
            figures = self.service.replicas.figures()
            if not self.service.active and not figures["running"] and not figures["waiting"]:
                assert figures["cache_use"] == 0
                return
            assert time.monotonic() < end
            time.sleep(0.01)


def load(**options: Any) -> Callable[[], bitnet_core.Model]:
    """Opens the shipped model."""
    return lambda: bitnet_core.load(None, "numpy", stream_interval=0.02, **options)


@contextmanager
def serving(
    opener: Callable[[], Any] | None = None,
    *,
    loaded: bool = True,
    served: Sequence[ServedModel] = (),
    names: tuple[str, ...] = (),
    **settings: Any,
) -> Iterator[Served]:
    """A server in a thread of its own. served: its models; without any it has one, which `opener` opens."""
    chosen = Settings(port=0, **settings)
    told: list[str] = []
    one = ServedModel(lambda make_room: (opener or load())(), names)
    models = Models(served or [one], chosen, told.append)
    app = make_app(models)
    server = run_module.Server(run_module.config_of(app, chosen))
    listener = run_module.listen(chosen)
    main = run_module.serve(server, models, app, listener, told.append)
    thread = threading.Thread(target=asyncio.run, args=(main,))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()

    try:
        end = time.monotonic() + 30
        while loaded and models.loading:
            assert time.monotonic() < end
            assert models.error is None, models.error
            time.sleep(0.01)
        while not server.started:
            time.sleep(0.01)
        yield Served(url, models, told, stop)
    finally:
        stop()


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serving(max_tokens=32, names=("stories", "org/alias")) as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[httpx.Client]:
    with server.client() as made:
        yield made


Ask = Callable[..., Any]


@pytest.fixture
def chat(client: httpx.Client) -> Ask:
    """chat(text, **fields): the answer's document."""

    def ask(text: str = "Tell me a story.", **fields: Any) -> Any:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0, **fields}
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


@pytest.fixture
def complete(client: httpx.Client) -> Ask:
    """complete(prompt, **fields): the answer's document."""

    def ask(prompt: Any = "Once upon a time", **fields: Any) -> Any:
        answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 8, "temperature": 0, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


def read_events(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[list[Any], bool]:
    """(documents, whether the stream ended with [DONE]); comments are checked and left out."""
    with client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        text = b"".join(answer.iter_bytes()).decode("utf-8")
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    found = [block.removeprefix("data: ") for block in blocks if block != ": keep-alive"]
    assert all("\n" not in block for block in found)
    done = bool(found) and found[-1] == "[DONE]"
    return [json.loads(block) for block in found if block != "[DONE]"], done


def read_text(documents: list[Any], index: int = 0) -> str:
    """The text of one choice."""
    choices = [choice for document in documents for choice in document["choices"] if choice["index"] == index]
    return "".join((c["delta"].get("content") or "") if "delta" in c else c["text"] for c in choices)


@pytest.fixture
def events() -> Ask:
    """events(client, path, body): (documents, whether the stream ended with [DONE])."""
    return read_events


@pytest.fixture
def joined() -> Ask:
    """joined(documents, index=0): the text of one choice."""
    return read_text


@pytest.fixture(scope="session")
def serve() -> Ask:
    """serve(...): a server of the test's own; see `serving`."""
    return serving

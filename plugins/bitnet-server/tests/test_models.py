"""Several models behind one port: loading at the first request, unloading, memory, names in every protocol."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import bitnet_core
import httpx
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.plan.memory import DeviceMemoryPlan
from bitnet_hal.errors import OutOfMemoryError
from bitnet_server.served_model import ServedModel

COMPLETIONS = "/v1/completions"


def opener(context: int, before: Callable[[Any], None] = lambda make_room: None) -> Callable[[Any], Any]:
    """Opens the shipped model. before: called with make_room."""

    def load(make_room: Any) -> Any:
        before(make_room)
        return bitnet_core.load(None, "numpy", context=context, max_sequences=4, stream_interval=0.02)

    return load


def two(**changed: Any) -> list[ServedModel]:
    """The models a (context 128) and b (context 64); `changed` has openers, by name."""
    sizes = {"a": 128, "b": 64}
    return [
        ServedModel(changed.get(name, opener(context)), (name,), nbytes=1000 * context)
        for name, context in sizes.items()
    ]


def states(client: httpx.Client) -> dict[str, str]:
    return {one["id"]: one["status"]["value"] for one in client.get("/v1/models").json()["data"]}


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def context_of(client: httpx.Client, name: str) -> int:
    """The context by which the model that answers is known; loads it."""
    return int(client.post("/tokenize", json={"content": "x", "model": name}).json()["max_model_len"])


@pytest.fixture
def pair(serve: Any) -> Iterator[Any]:
    with serve(served=two()) as served, served.client() as client:
        yield SimpleNamespace(served=served, client=client)


def test_a_model_is_loaded_at_its_first_request(pair: Any) -> None:
    client = pair.client
    assert client.get("/health/ready").status_code == 200
    listed = client.get("/v1/models").json()["data"]
    assert [(one["id"], one["size"], "meta" in one) for one in listed] == [("a", 128_000, False), ("b", 64_000, False)]
    assert states(client) == {"a": "unloaded", "b": "unloaded"}
    assert client.get("/props?model=b").json() == {"model": "b", "model_alias": "b", "state": "unloaded"}
    assert context_of(client, "b") == 64
    assert states(client) == {"a": "unloaded", "b": "loaded"}
    assert client.get("/props?model=b").json()["n_ctx"] == 64
    assert client.get("/v1/models/b").json()["meta"]["n_ctx"] == 64
    answer = client.post(COMPLETIONS, json={"prompt": "Once", "max_tokens": 2}).json()
    assert answer["model"] == "a"  # the first one
    assert states(client) == {"a": "loaded", "b": "loaded"}


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
CALLS = {
    "/v1/chat/completions": CHAT,
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/messages": CHAT,
    "/api/chat": {"messages": CHAT["messages"], "stream": False, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "Hi", "stream": False, "options": {"num_predict": 2}},
}


def test_every_protocol_names_a_model(pair: Any) -> None:
    for path, body in CALLS.items():
        for name in ("a", "b"):
            answer = pair.client.post(path, json={**body, "model": name})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == name, path
        unknown = pair.client.post(path, json={**body, "model": "c"})
        assert (unknown.status_code, "there is a, b" in unknown.text) == (404, True), unknown.text
    assert pair.client.post("/api/show", json={"model": "b:latest"}).json()["template"]
    assert [one["name"] for one in pair.client.get("/api/tags").json()["models"]] == ["a", "b"]
    counted = pair.client.post("/v1/messages/count_tokens", json={"model": "c", "messages": CHAT["messages"]})
    assert counted.status_code == 404


def test_what_describes_models_does_not_load_them(pair: Any) -> None:
    for path in ("/props", "/metrics", "/api/tags", "/api/ps", "/health", "/v1/models/a"):
        assert pair.client.get(path).status_code == 200, path
    assert pair.client.post("/api/show", json={"model": "a"}).json()["capabilities"] == ["completion", "tools"]
    assert pair.client.get("/api/ps").json() == {"models": []}
    assert states(pair.client) == {"a": "unloaded", "b": "unloaded"}


@contextmanager
def gated(serve: Any, *, fail: bool = False) -> Iterator[Any]:
    """A server whose model b is loaded only after `go` is set."""
    go = threading.Event()

    def before(make_room: Any) -> None:
        go.wait(20)
        if fail:
            raise ModelError("b.gguf: there is no such file")

    with serve(served=two(b=opener(64, before)), keep_alive=0.05) as served, served.client() as client:
        try:
            yield SimpleNamespace(served=served, client=client, go=go)
        finally:
            go.set()


def test_requests_wait_while_a_model_is_loaded(serve: Any) -> None:
    body = {"model": "b", "prompt": "Once", "max_tokens": 3, "temperature": 0}
    with gated(serve) as one, ThreadPoolExecutor() as pool:
        whole = pool.submit(one.client.post, COMPLETIONS, json=body)
        with one.client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as stream:
            lines = stream.iter_lines()
            assert [next(lines) for _ in range(3)] == [": keep-alive", "", ": keep-alive"]
            assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert states(one.client)["b"] == "loading"
            assert one.client.post(COMPLETIONS, json={**body, "model": "b", "n": "x"}).status_code == 400
            one.go.set()
            found = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert found[-1] == "[DONE]"
        text = "".join(json.loads(line)["choices"][0]["text"] for line in found[:-1])
        assert text == whole.result().json()["choices"][0]["text"] != ""


def test_a_model_that_cannot_be_loaded_is_an_error_of_its_requests(serve: Any, caplog: Any) -> None:
    body = {"model": "b", "prompt": "Once", "max_tokens": 3}
    with gated(serve, fail=True) as one:
        with one.client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as stream:
            lines = stream.iter_lines()
            assert next(lines) == ": keep-alive"
            one.go.set()
            (last,) = [line for line in lines if line.startswith("data: ")]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert (error["code"], "b.gguf" in error["message"]) == ("model_not_loaded", False)
        assert "b.gguf: there is no such file" in caplog.text
        refused = one.client.post(COMPLETIONS, json=body)
        assert (refused.status_code, refused.headers["x-should-retry"]) == (500, "false")
        assert one.client.get("/v1/models/b").json()["status"] == {"value": "unloaded", "failed": True}
        assert one.client.post(COMPLETIONS, json={**body, "model": "a"}).status_code == 200


def test_clients_that_leave_while_they_wait_are_forgotten(serve: Any) -> None:
    with gated(serve) as one:
        body = {"model": "b", "prompt": "Once", "stream": True}
        with one.client.stream("POST", COMPLETIONS, json=body) as stream:
            lines = stream.iter_lines()  # kept: the connection closes with it
            next(lines)
            assert one.served.models.active == 1
        until(lambda: one.served.models.active == 0)
        one.go.set()
        until(lambda: states(one.client)["b"] == "loaded")
        assert one.served.models.served[1].users == 0


def test_an_idle_model_is_unloaded_and_comes_back(serve: Any) -> None:
    with serve(served=two(), idle=0.1) as served, served.client() as client:
        for _ in range(2):
            assert context_of(client, "a") == 128
            until(lambda: states(client)["a"] == "unloaded")
        client.post(COMPLETIONS, json={"prompt": "Once", "max_tokens": 2, "model": "a"})
        text = client.get("/metrics").text
        assert 'bitnet:request_success_total{finished_reason="length",model_name="a"} 1.0' in text
        assert served.told.count("a is unloaded") >= 2


def test_a_single_model_may_be_idle_too(serve: Any) -> None:
    with serve(idle=0.1) as served, served.client() as client:
        until(lambda: states(client) == {"stories": "unloaded"})
        assert context_of(client, "stories") == 1024
        assert client.post(COMPLETIONS, json={"prompt": "a", "model": "b"}).status_code == 404
        assert served.models.ready


def test_the_least_lately_used_model_leaves_after_its_texts(serve: Any) -> None:
    """With room for one model, both are served in turn; a text under way is finished first."""
    body = {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True, "temperature": 0}
    with serve(served=two(), max_loaded=1) as served, served.client() as client, ThreadPoolExecutor(8) as pool:
        expected = client.post(COMPLETIONS, json={**body, "model": "a"}).json()["choices"][0]["text"]

        def ask(at: int) -> tuple[str, str]:
            answer = client.post(COMPLETIONS, json={**body, "model": "ab"[at % 2]}).json()
            return answer["model"], answer["choices"][0]["text"]

        assert list(pool.map(ask, range(8))) == [("a", expected), ("b", expected)] * 4
        assert sum(one.service is not None for one in served.models.served) == 1


def test_a_pinned_model_stays(serve: Any) -> None:
    models = two()
    models[0].pinned = True
    with serve(served=models, max_loaded=1, idle=0.05) as served, served.client() as client:
        assert states(client) == {"a": "loaded", "b": "unloaded"}
        assert client.post("/models/unload", json={"model": "a"}).status_code == 400
        refused = client.post(COMPLETIONS, json={"prompt": "Once", "model": "b"})
        assert (refused.status_code, "pinned" in refused.text) == (503, True)
        time.sleep(0.2)
        assert states(client)["a"] == "loaded"
        assert served.models.ready


def test_a_pinned_model_that_cannot_be_loaded_ends_the_server(serve: Any) -> None:
    def before(make_room: Any) -> None:
        raise ModelError("b.gguf: there is no such file")

    models = two(b=opener(64, before))
    models[1].pinned = True
    with serve(served=models, loaded=False) as served:
        until(lambda: served.models.error is not None)
        assert "b.gguf" in str(served.models.error)
        assert not served.models.ready


def test_a_model_that_closes_slowly_breaks_no_answer(serve: Any) -> None:
    seen = threading.Event()

    def slow(make_room: Any) -> bitnet_core.Model:
        model = opener(64)(make_room)
        close = model.close

        def closed() -> None:
            close()
            assert seen.wait(10)  # the process of a device may take long

        model.close = closed  # type: ignore[method-assign]
        return model

    with serve(served=two(b=slow)) as served, served.client() as client:
        assert context_of(client, "b") == 64
        client.post("/models/unload", json={"model": "b"})
        until(lambda: served.models.served[1].service is None)
        paths = ("/v1/models", "/metrics", "/health/live", "/props?model=b", "/api/ps")
        assert {client.get(path).status_code for path in paths} == {200}
        assert states(client)["b"] == "loaded"
        seen.set()
        assert context_of(client, "b") == 64  # once it has closed


def test_models_are_loaded_and_unloaded_on_demand(pair: Any) -> None:
    assert pair.client.post("/models/load", json={"model": "b"}).json() == {"success": True}
    assert states(pair.client) == {"a": "unloaded", "b": "loaded"}
    assert pair.client.post("/models/unload", json={"model": "b"}).json() == {"success": True}
    until(lambda: states(pair.client)["b"] == "unloaded")
    assert pair.client.post("/models/load", json={"model": "c"}).status_code == 404


def test_memory_is_made_for_a_model(serve: Any) -> None:
    """The device holds one of them: b is loaded after a has left."""
    seen: list[list[str]] = []

    def before(make_room: Any) -> None:
        info = pair.models.served[0].placed[0]

        def free() -> int:
            seen.append([one.names[0] for one in pair.models.served if one.state == "loaded"])
            return 0 if "a" in seen[-1] else 10_000_000

        plan = DeviceMemoryPlan(1000, 0, 10, 0, 0, 0)
        make_room(SimpleNamespace(info=info, free_memory=free), plan)

    with serve(served=two(b=opener(64, before))) as pair, pair.client() as client:
        context_of(client, "a")
        assert context_of(client, "b") == 64
        assert seen == [["a"], []]
        assert states(client) == {"a": "unloaded", "b": "loaded"}


def test_weights_of_mapped_files_count(serve: Any) -> None:
    from bitnet_server.room import shortage

    model = bitnet_core.load(None, "numpy", context=64)
    with model:
        device: Any = SimpleNamespace(info=model.device.info, free_memory=lambda: 1500)
        plan = DeviceMemoryPlan(1000, 0, 10, 0, 0, 0)
        assert shortage(device, plan, []) == 0
        assert shortage(device, plan, [(model.device.info, 800)]) == 310
        device.free_memory = lambda: -1
        assert shortage(device, plan, [(model.device.info, 800)]) == 0


def test_lack_of_memory_unloads_another_model(serve: Any) -> None:
    tries: list[int] = []

    def before(make_room: Any) -> None:
        tries.append(sum(one.state == "loaded" for one in pair.models.served))
        if tries[-1]:
            raise OutOfMemoryError("no room")

    with serve(served=two(b=opener(64, before))) as pair, pair.client() as client:
        context_of(client, "a")
        assert context_of(client, "b") == 64
        assert tries == [1, 0]


def test_the_end_of_the_server_ends_those_who_wait(serve: Any) -> None:
    with gated(serve) as one, ThreadPoolExecutor() as pool:
        waiting = pool.submit(one.client.post, COMPLETIONS, json={"model": "b", "prompt": "Once"})
        until(lambda: one.served.models.active == 1)
        one.served.models.draining = True
        refused = one.client.post(COMPLETIONS, json={"model": "a", "prompt": "Once"})
        assert (refused.status_code, refused.headers["x-should-retry"]) == (503, "false")
        one.served.models.served[1].waiters[0].get_loop().call_soon_threadsafe(one.served.models.end_all)
        assert waiting.result().status_code == 503

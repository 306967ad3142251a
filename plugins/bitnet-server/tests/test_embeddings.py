"""Embeddings by OpenAI's path and by Ollama's, of a tiny model on the numpy device."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import bitnet_core
import httpx
import numpy as np
import pytest
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_server.protocols import ollama_models


def load() -> bitnet_core.Model:
    return bitnet_core.load(SyntheticSource("embedding-tiny"), "numpy")


@pytest.fixture(scope="module")
def client(serve: Any) -> Iterator[httpx.Client]:
    with serve(load, names=("embedder",)) as served, served.client() as made:
        yield made


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    with load() as model:
        return np.asarray(model.embed(["th", "another text"]))


def post(client: httpx.Client, path: str, **fields: Any) -> Any:
    answer = client.post(path, json={"model": "embedder", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_openai_s_path_gives_the_vectors_of_the_model(client: httpx.Client, vectors: np.ndarray) -> None:
    found = post(client, "/v1/embeddings", input=["th", "another text"])
    assert [one["index"] for one in found["data"]] == [0, 1]
    np.testing.assert_allclose([one["embedding"] for one in found["data"]], vectors, atol=1e-3)
    assert (found["object"], found["model"]) == ("list", "embedder")
    assert found["usage"] == {"prompt_tokens": 12, "total_tokens": 12}
    (one,) = post(client, "/embeddings", input="th")["data"]
    np.testing.assert_allclose(one["embedding"], vectors[0], atol=1e-3)


def test_token_ids_dimensions_and_base64(client: httpx.Client, vectors: np.ndarray) -> None:
    (one,) = post(client, "/v1/embeddings", input=[257], dimensions=8, encoding_format="base64")["data"]
    found = np.frombuffer(base64.b64decode(one["embedding"]), "<f4")
    np.testing.assert_allclose(found, vectors[0, :8] / np.linalg.norm(vectors[0, :8]), atol=1e-3)
    assert len(post(client, "/v1/embeddings", input=[[257], [1, 2]])["data"]) == 2


def test_ollama_s_paths_give_them_too(client: httpx.Client, vectors: np.ndarray) -> None:
    found = post(client, "/api/embed", input=["th", "another text"])
    np.testing.assert_allclose(found["embeddings"], vectors, atol=1e-3)
    assert (found["prompt_eval_count"], found["model"]) == (12, "embedder")
    assert found["total_duration"] > 0
    assert post(client, "/api/embed", input=[])["embeddings"] == []
    np.testing.assert_allclose(post(client, "/api/embeddings", prompt="th")["embedding"], vectors[0], atol=1e-3)
    assert post(client, "/api/embed", input="x " * 400)["prompt_eval_count"] == 256


def test_ollama_s_clients_see_what_the_model_can_do(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ollama_models, "_modified", lambda model: "")  # the synthetic model has no file
    assert post(client, "/api/show")["capabilities"] == ["embedding"]


@pytest.mark.parametrize(
    ("path", "fields", "status", "words"),
    [
        ("/v1/embeddings", {"input": ""}, 400, "empty"),
        ("/v1/embeddings", {"input": ["a", 1]}, 400, "not both"),
        ("/v1/embeddings", {"input": [999]}, 400, "outside 0..511"),
        ("/v1/embeddings", {"input": "x", "dimensions": 1000}, 400, "dimensions must be from 1 to 256"),
        ("/v1/embeddings", {"input": "x", "model": "other"}, 404, "other"),
        ("/v1/embeddings", {"input": ["x"] * 2049}, 400, "2049 texts"),
        ("/v1/embeddings", {"input": "x " * 400}, 400, "the context holds 256"),
        ("/api/embed", {"input": "x " * 400, "truncate": False}, 400, "the context holds 256"),
        ("/v1/completions", {"prompt": "x"}, 400, "embeds texts and generates none"),
    ],
)
def test_errors_are_sentences(client: httpx.Client, path: str, fields: dict[str, Any], status: int, words: str) -> None:
    answer = client.post(path, json={"model": "embedder", **fields})
    assert answer.status_code == status, answer.text
    assert words in answer.text

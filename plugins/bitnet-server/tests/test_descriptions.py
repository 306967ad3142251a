"""/props, /slots and /tokenizer_info, and /tokenize as vLLM's clients ask it."""

from __future__ import annotations

from typing import Any

import httpx


def test_props_are_those_of_llama_cpp(client: httpx.Client) -> None:
    props = client.get("/props").json()
    assert (props["model_alias"], props["default_generation_settings"]["n_ctx"]) == ("stories", 1024)
    assert props["total_slots"] == props["slots"] > 0
    assert props["default_generation_settings"]["params"]["top_p"] <= 1
    assert props["modalities"] == {"vision": False, "audio": False}
    assert "{%" in props["chat_template"]
    assert props["model_path"] == "stories.gguf"


def test_props_say_what_the_page_shows(client: httpx.Client) -> None:
    props = client.get("/props").json()
    assert (props["health"], props["active_requests"]) == ("ready", 0)
    defaults = props["default_generation_settings"]["params"]
    assert (defaults["temperature"], defaults["max_tokens"]) == (1, 32)  # of requests that state none


def test_special_tokens_are_found_by_a_remote_tokenizer(client: httpx.Client) -> None:
    """The calls of lm-eval's RemoteTokenizer: the ids of the special tokens, and a round trip."""
    info = client.get("/tokenizer_info").json()
    assert info["chat_template"] == client.get("/props").json()["chat_template"]
    for name in ("bos_token", "eos_token"):
        asked = {"prompt": info[name], "add_special_tokens": False}
        assert len(client.post("/tokenize", json=asked).json()["tokens"]) == 1
    asked = {"prompt": "Once upon a time", "add_special_tokens": False}
    answer = client.post("/tokenize", json=asked).json()
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 1024)
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"] == "Once upon a time"
    with_bos = client.post("/tokenize", json={**asked, "add_special_tokens": True}).json()["tokens"]
    assert with_bos[1:] == answer["tokens"]


def test_slots_show_requests_without_texts(serve: Any) -> None:
    with serve(slots=True) as served, served.client() as client:
        assert client.get("/slots").json() == []
        body = {"prompt": "Once upon a time", "max_tokens": 900, "stream": True, "ignore_eos": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()  # kept: the connection closes with it
            next(lines)
            (slot,) = client.get("/slots").json()
        assert (slot["state"], slot["is_processing"], slot["n_ctx"]) == ("running", True, 1024)
        assert "Once" not in str(slot)

"""Texts of many streaming clients, which arrive at random and of which some leave, are those of clients alone."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import bitnet_core
from bitnet_core.engine.speculation.prompt_lookup import PromptLookup
from bitnet_core.engine.speculation.simulated import SimulatedDrafter
from bitnet_core.testing.drafts import draft_always, draft_never

CLIENTS = 16
PREFIX = "Once upon a time there was a little fox who lived in a big forest with his mother. "


def request(number: int) -> dict[str, Any]:
    """Return the body of a client: greedy or seeded, with the shared prefix or without."""
    prompt = (PREFIX if number % 3 else "") + f"One day, {('Lily', 'Tom', 'the cat', 'a bird')[number % 4]}"
    sampling = {"temperature": 0.9, "seed": number} if number % 2 else {"temperature": 0}
    return {"prompt": prompt, "max_tokens": 24, "stream": True, **sampling}


def text(served: Any, number: int, *, most: int = 1000) -> str:
    """Stream a completion; the client leaves after `most` chunks."""
    pieces = []
    with served.client() as client, client.stream("POST", "/v1/completions", json=request(number)) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            pieces.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
            if len(pieces) == most:
                break
    return "".join(pieces)


def load() -> bitnet_core.Model:
    return bitnet_core.load(
        None, "numpy", deterministic=True, max_sequences=6, kv_cache_size=3 << 20, stream_interval=0.02
    )


def test_texts_of_many_clients_are_those_of_one(serve: Callable[..., Any]) -> None:
    """Alone without speculation, together with it."""
    with serve(load) as served:
        engine = served.service.model.engine
        asked: list[Any] = []
        draft_never(engine)
        add = engine.scheduler.add_request
        engine.scheduler.add_request = lambda request: [add(request), asked.append(request)]
        alone = [text(served, number) for number in range(CLIENTS)]
        served.idle()
        texts = {tuple(one.tokens[: one.prompt_tokens]): one.generated for one in asked}
        draft_always(engine, SimulatedDrafter(PromptLookup(), texts, 0.8, engine.config.tokens), 1)
        found: dict[int, str] = {}
        delays = random.Random(45)

        def ask(number: int, delay: float) -> None:
            time.sleep(delay)
            found[number] = text(served, number, most=2 if number % 5 == 4 else 1000)

        threads = [threading.Thread(target=ask, args=(number, delays.uniform(0, 0.5))) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        served.idle()
    assert engine.scheduler.counts["accepted_tokens"] > 10
    for number, wanted in enumerate(alone):
        if number % 5 == 4:
            assert found[number]
            assert wanted.startswith(found[number])
        else:
            assert found[number] == wanted, f"client {number}"

"""One model on the CPU's backend and on those of other APIs, behind one queue."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import bitnet_core
import pytest
from bitnet_core.api.replicas import ReplicaOpener, SeveralDevices, load_replicas
from bitnet_core.engine.replicas.replica_set import ReplicaSet
from bitnet_core.engine.replicas.speed import DeviceSpeed
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.loading import LoadOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_hal.discovery.registry import registry
from bitnet_hal.discovery.request import parse_requests

PROMPTS = ["Once upon a time", "The little dog", "There was a", "One day"]
TOKENS = 30
SEEDED = SamplingParams(temperature=0.8, top_k=20, seed=7)


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def requests_of(model: bitnet_core.Model) -> list[Any]:
    """Two requests for each prompt, one of them seeded."""
    made = []
    for prompt in PROMPTS:
        tokens = model.tokenizer.encode(prompt, add_bos=model.tokenizer.add_bos)
        made += [model.engine.new_request(tokens, sampling, max_tokens=TOKENS) for sampling in (None, SEEDED)]
    return made


def alone() -> list[list[int]]:
    with bitnet_core.load(None, "cpu") as model:
        requests = requests_of(model)
        for request in requests:
            model.engine.queue_request(request)
        while model.engine.step():
            pass
        return [request.generated for request in requests]


@pytest.mark.parametrize("other", ["numpy", "opencl", "vulkan", "webgpu"])
def test_texts_do_not_depend_on_the_device(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is lost in the middle of its texts, which go on on the other device."""
    registry.cache_clear()
    if other not in registry().backends or not registry().devices(other):
        pytest.skip(f"there is no device of the backend {other}; install its plugin and a driver")
    # both count as equally fast, so that both get requests
    monkeypatch.setattr(DeviceSpeed, "step_seconds", lambda _, requests: 0.01 * requests)
    monkeypatch.setattr(DeviceSpeed, "prompt_seconds", lambda _, tokens: 0.0)
    several = SeveralDevices(parse_requests(f"cpu:0,{other}:0"))

    opener = ReplicaOpener(None, LoadOptions(), EngineOptions(stream_interval=1e-6))

    def pull_out(engine: Any, outputs: list[Any]) -> None:
        """End the CPU's process after its first tokens."""
        if engine.device.info.backend == "cpu" and any(len(output.tokens) for output in outputs):
            os.kill(engine.device.pid, signal.SIGKILL)

    made: ReplicaSet[bitnet_core.Model] = ReplicaSet(lambda: load_replicas(opener, several), pull_out)
    made.start()
    try:
        until(lambda: [one.state for one in made.devices()] == ["ready", "ready"])
        assert made.model is not None
        requests = requests_of(made.model)
        made.submit(requests)
        until(lambda: all(request.finish_reason for request in requests))
        assert [one.state for one in made.devices()] == ["away", "ready"]
        assert made.handovers["cpu:0"] > 0
    finally:
        made.close(30)
    assert [request.error for request in requests] == [None] * len(requests)
    assert [request.generated for request in requests] == alone()

"""Engines in processes of their own: the texts of one device, processes that are killed, and nothing left behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bitnet_core
import psutil
import pytest
from bitnet_core.api.replicas import ReplicaOpener, SeveralDevices, load_replicas
from bitnet_core.engine.replicas import arrivals
from bitnet_core.engine.replicas import replica as replica_module
from bitnet_core.engine.replicas.messages import sendable
from bitnet_core.engine.replicas.remote_engine import RemoteEngine
from bitnet_core.engine.replicas.replica_set import ReplicaSet
from bitnet_core.engine.replicas.routing import TextLength
from bitnet_core.engine.replicas.speed import DeviceSpeed
from bitnet_core.engine.request.prompt_scores import PromptScores
from bitnet_core.errors import ModelError
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.loading import LoadOptions
from bitnet_core.structured import grammar_of
from bitnet_hal.discovery.registry import registry
from bitnet_hal.discovery.request import parse_requests
from bitnet_hal.errors import DeviceLostError, DeviceNotFoundError, OutOfMemoryError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")

TOKENS = 40
DOG = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"dog": {"type": "string"}}}}}
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "top_k": 20, "seed": 5},
    {"temperature": 0.8, "seed": 6, "repetition_penalty": 1.2, "logprobs": 2, "logit_bias": {100: -5.0}},
    {"temperature": 0, "response_format": DOG},
    {"temperature": 1.0, "seed": 7, "response_format": DOG},
]
ENVIRONMENT = {"BITNET_GPU_FAKE": "cuda,rocm", "OPENBLAS_NUM_THREADS": "1"}
Running = ReplicaSet[bitnet_core.Model]


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    """Two devices that compute with numpy, are equally fast, and return at once."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setattr(DeviceSpeed, "step_seconds", lambda _, requests: 0.01 * requests)
        patch.setattr(DeviceSpeed, "prompt_seconds", lambda _, tokens: 0.001 * tokens)
        patch.setattr(TextLength, "left", lambda _, request: float(request.max_tokens - request.generated_tokens))
        patch.setattr(arrivals, "LOOK_SECONDS", 0.05)
        patch.setattr(replica_module, "RETURN_SECONDS", 0.0)
        registry.cache_clear()
        yield patch
    registry.cache_clear()


@pytest.fixture(autouse=True)
def environment(patched: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables again, which every test begins without."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def pair(patched: pytest.MonkeyPatch) -> Iterator[Running]:
    """The shipped model on both."""
    opener = ReplicaOpener(None, LoadOptions(), EngineOptions(stream_interval=0.01))
    several = SeveralDevices(parse_requests("cuda:0,rocm:0"))
    made: Running = ReplicaSet(lambda: load_replicas(opener, several), lambda engine, outputs: None)
    made.start()
    try:
        until(lambda: both(made, "ready"))
        yield made
    finally:
        pids = processes(made)
        made.close(30)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def both(made: Running, state: str) -> bool:
    return [one.state for one in made.devices()] == [state, state]


def processes(made: Running) -> list[int]:
    return [engine.device.pid for engine in made.engines]  # type: ignore[attr-defined]  # of RemoteEngine


def request_of(model: bitnet_core.Model, at: int) -> Any:
    given = dict(SAMPLING[at % len(SAMPLING)])
    grammar = grammar_of(given.pop("response_format", None))
    tokens = model.tokenizer.encode(["The cat", "One day"][at % 2], add_bos=model.tokenizer.add_bos)
    return model.engine.new_request(
        tokens,
        model.defaults.params(**given),
        max_tokens=TOKENS,
        stop_token_ids=model.tokenizer.eos_ids if grammar else (),
        constraint=model.grammars.constraint(grammar) if grammar else None,
    )


@pytest.fixture(scope="module")
def expected() -> list[tuple[Any, ...]]:
    """The results of ten requests on one device of this process."""
    with bitnet_core.load(None, "numpy") as model:
        requests = [request_of(model, at) for at in range(10)]
        for request in requests:
            model.engine.queue_request(request)
        while model.engine.step():
            pass
        return [result(request) for request in requests]


def result(request: Any) -> tuple[Any, ...]:
    scores = [(score.token, round(score.logprob, 3), len(score.top)) for score in request.sampler.scores]
    return request.generated, request.finish_reason, request.error, scores


def ask(made: Running) -> list[Any]:
    model = made.model
    assert model is not None
    requests = [request_of(model, at) for at in range(10)]
    made.submit(requests)
    return requests


def ended(requests: list[Any]) -> bool:
    return all(request.finish_reason for request in requests)


def test_texts_and_figures_are_those_of_one_device(pair: Running, expected: list[Any]) -> None:
    before = pair.figures()
    requests = ask(pair)
    until(lambda: ended(requests))
    assert [result(request) for request in requests] == expected
    made = [one.generated_tokens for one in pair.devices()]
    tokens = sum(len(generated) for generated, *_ in expected)
    assert sum(made) == tokens
    assert min(made) > TOKENS
    assert pair.figures()["generated_tokens"] - before["generated_tokens"] == tokens
    until(lambda: pair.figures()["running"] == 0)
    assert pair.figures()["cache_use"] == 0
    assert pair.memory()["weights"] > 1e6
    assert set(pair.kernel_launches()) == {"cuda:0", "rocm:0"}
    assert pair.error_counts() == {}
    timed = requests[0]
    assert timed.prefill_seconds > 0
    assert timed.decode_seconds > 0
    assert timed.added < timed.admitted < time.perf_counter()


def test_a_process_that_is_silent_gets_no_requests(pair: Running, patched: pytest.MonkeyPatch) -> None:
    replica = pair.replicas[0]
    engine: Any = replica.engine
    with patched.context() as patch:
        patch.setattr(replica_module, "_HANGING", 0.0)
        patch.setattr(engine, "waiting_since", time.monotonic() - 1)
        patch.setattr(engine.device, "timeout", 2.0)
        assert replica.responsive
        engine.device.timeout = 0.5  # what is queued takes no longer
        assert not replica.responsive


def test_logits_of_a_prompt_come_back(pair: Running) -> None:
    model = pair.model
    assert model is not None
    tokens, seen = [5, 6, 7], {}
    request = model.engine.new_request(tokens, max_tokens=1, scored=lambda at, logits: seen.update({at: logits.copy()}))
    pair.submit([request])
    until(lambda: ended([request]))
    with bitnet_core.load(None, "numpy") as alone:
        logits = alone.logits(tokens)
    assert sorted(seen) == [0, 1, 2]
    assert all(abs(seen[at] - logits[at]).max() < 1e-3 for at in seen)


def test_scores_of_a_prompt_are_made_in_the_process(pair: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    model = pair.model
    assert model is not None
    tokens = [5, 6, 7]
    kept, expected = PromptScores(tokens, 2), PromptScores(tokens, 2)
    monkeypatch.setattr(PromptScores, "score", None)  # of this process
    request = model.engine.new_request(tokens, max_tokens=1, scored=kept)
    pair.submit([request])
    until(lambda: ended([request]))
    monkeypatch.undo()
    with bitnet_core.load(None, "numpy") as alone:
        for position, logits in enumerate(alone.logits(tokens)):
            expected(position, logits)
    assert sorted(kept.scores) == sorted(expected.scores) == [1, 2]
    for at, score in kept.scores.items():
        assert (score.token, [token for token, _ in score.top]) == (tokens[at], [t for t, _ in expected.scores[at].top])
        assert score.logprob == pytest.approx(expected.scores[at].logprob, abs=1e-3)


def test_a_prompt_goes_where_it_was_sent_before(pair: Running) -> None:
    model = pair.model
    assert model is not None
    prompt = [token % 50 for token in range(200)]
    for _ in range(3):
        request = model.engine.new_request(prompt, max_tokens=2)
        pair.submit([request])
        until(lambda request=request: ended([request]))
    assert request.cached_tokens == 192


def test_cancelled_requests_leave_the_process(pair: Running) -> None:
    requests = ask(pair)
    until(lambda: any(request.generated_tokens for request in requests))
    pair.cancel(requests)
    until(lambda: not pair.requests())
    until(lambda: pair.figures()["running"] + pair.figures()["waiting"] == 0)
    engines: list[Any] = list(pair.engines)
    assert [engine.waiting_since for engine in engines] == [None, None]  # nothing to be late with
    assert {request.finish_reason for request in requests} == {"cancelled"}


def test_a_process_that_is_killed_in_mid_text_changes_no_text(pair: Running, expected: list[Any]) -> None:
    """It returns in a new process, as one does that is killed while idle."""
    first, second = pair.replicas
    old = processes(pair)
    requests = ask(pair)
    until(lambda: any(3 < one.generated_tokens < 30 for one in list(first.requests)))
    os.kill(old[0], signal.SIGKILL)
    until(lambda: ended(requests))
    assert [result(request) for request in requests] == expected
    assert sum(pair.handovers.values()) > 0
    os.kill(old[1], signal.SIGKILL)
    until(lambda: second.returns == 1 and both(pair, "ready"))
    assert first.returns == 1
    assert set(old).isdisjoint(processes(pair))
    requests = ask(pair)
    until(lambda: ended(requests))
    assert [result(request) for request in requests] == expected
    assert pair.error_counts() == {"DeviceLostError": 2}


def test_the_server_reads_no_weights(patched: pytest.MonkeyPatch) -> None:
    def read(self: Any, name: str) -> Any:
        raise AssertionError(name)

    several = SeveralDevices(parse_requests("cuda:0,rocm:0"))
    with patched.context() as patch:
        for name in ("ternary", "dense", "vector"):
            patch.setattr(SyntheticSource, name, read)
        opener = ReplicaOpener(SyntheticSource("tiny"), LoadOptions(), EngineOptions())
        with load_replicas(opener, several) as model:
            assert model.engine.memory()["weights_bytes"] > 0
            pid = model.engine.device.pid  # type: ignore[attr-defined]  # of DeviceProcess
            os.kill(pid, signal.SIGKILL)
            model.engine.add_request([1, 2], max_tokens=4)
            with pytest.raises(DeviceLostError, match="has ended"):
                model.engine.step()


def test_errors_keep_class_and_details(tmp_path: Path) -> None:
    several = SeveralDevices(parse_requests("cuda:0,rocm:0"))
    before = len(psutil.Process().children())
    with pytest.raises(DeviceNotFoundError, match="there is no device cuda:7") as caught:
        several.open("cuda:7")
    assert caught.value.backend == "cuda"
    source = SyntheticSource("tiny")
    absent = ReplicaOpener(tmp_path / "absent.gguf", LoadOptions(), EngineOptions())
    with pytest.raises(ModelError, match=r"absent\.gguf"):
        RemoteEngine(source, several.open("cuda:0"), absent)
    assert len(psutil.Process().children()) == before


def test_errors_that_cannot_be_pickled_keep_their_text() -> None:
    full = OutOfMemoryError("full", backend="cuda", requested=7, free=3, code="2")
    again = pickle.loads(pickle.dumps(sendable(full)))  # noqa: S301 - our own
    assert (str(again), again.requested, again.free, again.code) == (str(full), 7, 3, "2")

    class OddError(Exception):
        pass

    assert str(sendable(OddError("no"))) == "OddError: no"


PARENT = """
import os, signal, sys
from bitnet_core.api.replicas import *
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_hal.discovery.request import parse_requests

several = SeveralDevices(parse_requests("cuda:0,rocm:0"))
model = load_replicas(ReplicaOpener(SyntheticSource("tiny"), LoadOptions(), EngineOptions()), several)
print(model.engine.device.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_end_with_the_server(patched: pytest.MonkeyPatch) -> None:
    run = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, check=False)
    assert run.returncode == -signal.SIGKILL, run.stderr
    pid = int(run.stdout)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)

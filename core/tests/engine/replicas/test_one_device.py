"""A model on one device in a process of its own, as a server loads it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bitnet_core
import numpy as np
import psutil
import pytest
from bitnet_core.api.replicas import ReplicaOpener, load_onto
from bitnet_core.engine.replicas import device_process
from bitnet_core.engine.replicas.device_process import DeviceProcess
from bitnet_core.engine.replicas.remote_engine import RemoteEngine
from bitnet_core.engine.replicas.worker_process import EngineHost
from bitnet_core.errors import ModelError
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.loading import LoadOptions
from bitnet_hal.discovery.request import DeviceRequest
from bitnet_hal.discovery.selection import BackendStartupSummary
from bitnet_hal.errors import OutOfMemoryError
from bitnet_hal.reference.describe import numpy_info

EMBEDDING = Path(__file__).parents[2] / "golden" / "embedding" / "folder"
NUMPY = DeviceRequest("numpy")
SUMMARY = BackendStartupSummary(NUMPY, ("numpy",), numpy_info())


def opener(model: Path | None = None) -> ReplicaOpener:
    return ReplicaOpener(model, LoadOptions(), EngineOptions(context=64, max_sequences=2))


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children() if "worker_process" in str(child.cmdline())]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows lists children in another way")
def test_a_model_that_embeds_has_a_process_too() -> None:
    stages: list[str] = []
    with load_onto(opener(EMBEDDING), NUMPY, progress=lambda stage, done, total: stages.append(stage)) as model:
        made = model.embed(["a text"])
        assert len(children()) == 1
        assert model.summary.selected.request == "numpy:0"
    with bitnet_core.load(EMBEDDING, "numpy", context=64) as alone:
        assert np.abs(made - alone.embed(["a text"])).max() < 1e-5
    assert "load" in stages
    assert children() == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows lists children in another way")
def test_nothing_is_left_of_a_model_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_process, "_CLOSING_SECONDS", 60.0)  # the process need not be killed
    began = time.monotonic()
    with pytest.raises(ModelError):
        load_onto(opener(tmp_path / "none.gguf"), NUMPY)

    def no_room(source: Any, device: DeviceProcess) -> None:
        raise OutOfMemoryError("there is no room", backend="numpy")

    with pytest.raises(OutOfMemoryError):
        load_onto(opener(), NUMPY, no_room)
    assert children() == []
    assert time.monotonic() - began < 50


def test_a_device_that_took_the_place_of_a_lost_one_is_told(make_engine: Any) -> None:
    sent: list[tuple[Any, ...]] = []
    channel: Any = SimpleNamespace(send=sent.append)
    host = EngineHost(channel)
    moved = SUMMARY.moved_to(numpy_info(), "it was lost")
    host._summary = SUMMARY
    host._thread = SimpleNamespace(model=SimpleNamespace(engine=make_engine(), summary=moved))  # type: ignore[assignment]
    host._deliver([])
    host._deliver([])
    assert [message[0] for message in sent] == ["moved", "outputs", "outputs"]

    engine = RemoteEngine.__new__(RemoteEngine)
    engine.device = DeviceProcess.__new__(DeviceProcess)
    assert engine._take(*sent[0]) == []
    assert engine.summary == moved
    assert engine.device.info == moved.selected


def test_a_request_that_ends_while_its_grammar_is_compiled_is_not_queued(make_engine: Any) -> None:
    host = EngineHost(SimpleNamespace(send=lambda message: None))  # type: ignore[arg-type]
    model: Any = SimpleNamespace(engine=make_engine())
    first, second = (model.engine.new_request([1, 2], max_tokens=2) for _ in range(2))
    host._compiled |= {first.id, second.id}
    host.finish(model, first.id)
    host.add(model, [first, second])
    assert list(model.engine.scheduler.waiting) == [second]
    assert not host._compiled | host._cancelled

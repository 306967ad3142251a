"""A model on devices that read each other's memory: the same texts, with steps that are queued ahead and overlap."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.request.request import Request
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.sampling import SamplingParams
from bitnet_core.testing.drawn import DrawnSource
from bitnet_hal.base import LaunchRecording
from bitnet_hal.device import whole
from bitnet_hal.errors import UnsupportedError
from bitnet_hal.p2p import probe
from bitnet_hal.reference.describe import numpy_info
from bitnet_hal.reference.device import NumpyBuffer, NumpyDevice, NumpyKernel

STEP = 1.0
"""Virtual seconds of a step on each device; copies and the host take none."""


class Clock:
    """The virtual time of the host."""

    now = 0.0


class Peer(NumpyDevice):
    """A numpy device that reads the memory of the others, and whose recorded steps take virtual time."""

    def __init__(self, index: int, clock: Clock, peers: int = 3) -> None:
        others = frozenset(f"card {other}" for other in range(peers) if other != index)
        features = frozenset({"async-readback", "peer-copy"})
        info = replace(numpy_info(), index=index, physical_id=f"card {index}", peers=others, features=features)
        super().__init__(info)
        self.clock = clock
        self.idle_at = 0.0
        self.downloads = 0

    def _replay(self, recording: LaunchRecording[NumpyBuffer, NumpyKernel]) -> None:
        super()._replay(recording)
        self.idle_at = max(self.idle_at, self.clock.now) + STEP

    def _mark(self) -> float:
        return self.idle_at

    def _copy_from(self, other: Any, mark: Any, source: Any, source_at: int, target: Any, at: int, nbytes: int) -> None:
        target.data[at : at + nbytes] = source.data[source_at : source_at + nbytes]
        self.idle_at = max(self.idle_at, mark)

    def _download(self, buffer: NumpyBuffer, offset: int, target: memoryview) -> None:
        super()._download(buffer, offset, target)
        self.downloads += 1
        self.clock.now = max(self.clock.now, self.idle_at)

    def _read_async(self, buffer: NumpyBuffer, offset: int, nbytes: int) -> Callable[[memoryview], None]:
        copy, done_at = buffer.data[offset : offset + nbytes].copy(), self.idle_at

        def read(target: memoryview) -> None:
            self.clock.now = max(self.clock.now, done_at)
            target[:] = copy.data

        return read


def split(shape: str, counts: list[int], sequences: int, **peers: int) -> Engine:
    """Open a model with so many layers on each device before the last one."""
    clock = Clock()
    before = [(Peer(at + 1, clock, **peers), count) for at, count in enumerate(counts)]
    options = EngineOptions(max_sequences=sequences)
    return Engine(DrawnSource(shape=shape), Peer(0, clock, **peers), options, before=before)


def texts(engine: Engine, count: int, tokens: int = 24, temperature: float = 0.0) -> list[list[int]]:
    """Return the tokens after prompts of their own."""
    params = SamplingParams(temperature=temperature, seed=1)
    requests: list[Request] = []
    for at in range(count):  # their ends differ
        prompt = list(range(1 + at, 8 + 3 * at))
        requests.append(engine.add_request(prompt, params, max_tokens=tokens - 3 * (at % 3)))
    while engine.step():
        pass
    assert [request.error for request in requests] == [None] * count
    return [list(request.generated) for request in requests]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("counts", [[1], [1, 1]])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_are_those_of_one_device(count: int, counts: list[int], temperature: float) -> None:
    with closing(Engine(DrawnSource(shape="bonsai2-tiny"), NumpyDevice(), EngineOptions(max_sequences=4))) as engine:
        expected = texts(engine, count, temperature=temperature)
    with closing(split("bonsai2-tiny", counts, 4)) as engine:
        assert texts(engine, count, temperature=temperature) == expected
        assert texts(engine, count, temperature=temperature) == expected  # from the prefix cache


def test_a_model_with_experts() -> None:
    with closing(Engine(DrawnSource(shape="maple-tiny"), NumpyDevice(), EngineOptions(max_sequences=4))) as engine:
        expected = texts(engine, 3)
    with closing(split("maple-tiny", [1], 4)) as engine:
        assert texts(engine, 3) == expected


def decode(engine: Engine, count: int, tokens: int) -> tuple[float, int]:
    """Decode texts together; returns the virtual seconds of a step after the first tokens, and the downloads."""
    device: Any = engine.device
    requests = [engine.add_request([3 + at, 4], max_tokens=tokens) for at in range(count)]
    while not all(request.generated_tokens for request in requests):
        engine.step()
    began, before = device.clock.now, sum(part.device.downloads for part in engine.worker.parts)
    left = tokens - requests[0].generated_tokens
    while engine.step():
        pass
    downloads = sum(part.device.downloads for part in engine.worker.parts) - before
    return (device.clock.now - began) / left, downloads


def test_one_text_waits_for_no_host() -> None:
    """Each step is one on each device, and nothing but the tokens is read."""
    with closing(split("bonsai-tiny", [1], 1)) as engine:
        seconds, downloads = decode(engine, 1, 60)
        assert seconds == pytest.approx(2 * STEP)
        assert downloads == 0


def test_steps_are_queued_ahead_for_every_group() -> None:
    with closing(split("bonsai-tiny", [1], 4)) as engine:
        requests = [engine.add_request([3 + at, 4], max_tokens=100) for at in range(4)]
        while requests[0].generated_tokens < 20:
            engine.step()
        runner = engine.worker.runner()
        assert engine.scheduler.multi_step.queued(runner) > 0
        engine.finish_request(requests[1])  # a row of one group is gone: the others go on
        while engine.step():
            pass
        others = [list(request.generated) for at, request in enumerate(requests) if at != 1]
    with closing(Engine(DrawnSource(shape="bonsai-tiny"), NumpyDevice(), EngineOptions(max_sequences=4))) as engine:
        alone = [engine.add_request([3 + at, 4], max_tokens=100) for at in (0, 2, 3)]
        while engine.step():
            pass
        assert others == [list(request.generated) for request in alone]


def test_two_groups_keep_both_devices_busy() -> None:
    """While one device computes a group, the other one computes the other: a step of both takes two steps of one device
    instead of four."""
    with closing(split("bonsai-tiny", [1], 4)) as engine:
        seconds, _ = decode(engine, 4, 60)
        assert 2 * STEP <= seconds < 2.2 * STEP


def test_devices_that_are_no_peers_go_through_the_host() -> None:
    with closing(split("bonsai-tiny", [1], 1, peers=0)) as engine:
        _, downloads = decode(engine, 1, 20)
        assert downloads >= 2 * 18


def test_routes() -> None:
    clock = Clock()
    one, other, stranger = Peer(0, clock), Peer(1, clock), NumpyDevice(replace(numpy_info(), index=2))
    assert probe(one.info, other.info) == "peer copy"
    assert probe(one.info, stranger.info) == probe(stranger.info, one.info) == "host memory"
    views = [device.alloc(16) for device in (one, stranger)]
    with pytest.raises(UnsupportedError, match="cannot read the memory of numpy:2"):
        one.copy_from(stranger, whole(views[1]), whole(views[0]), None)
    with pytest.raises(ValueError, match="belongs to another device"):
        one.copy_from(other, whole(views[0]), whole(views[0]), other.mark())

"""Benchmark one model on several devices, each in its own process as in the server: first one by one, then all at
once."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bitnet_hal.device import DeviceInfo, DeviceType

from bitnet_core.engine.replicas.remote_engine import RemoteEngine
from bitnet_core.measure.benchmark import Run, measured_runs, prompt_length
from bitnet_core.progress import Progress


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens per second, summed over the requests of a device: of prompts, of decoding, and of answers over the total
    time."""

    prefill: float
    decode: float
    whole: float


@dataclass(frozen=True, slots=True)
class DeviceSpeeds:
    """The speeds of one device while the others are idle, and while they work. processor: see processor_of."""

    device: str
    device_name: str
    processor: str
    alone: Speeds
    together: Speeds


@dataclass(frozen=True, slots=True)
class ReplicaResult:
    """Medians over the runs. sequences: concurrent requests of each device."""

    model: str
    prompt_tokens: int
    generated_tokens: int
    sequences: int
    repeat: int
    devices: tuple[DeviceSpeeds, ...]

    @property
    def alone(self) -> Speeds:
        """The sum of the devices' speeds, each measured alone."""
        return _sum([one.alone for one in self.devices])

    @property
    def possible(self) -> float:
        """Tokens per second of answers if each processor were as fast as its fastest device alone."""
        return possible_sum([one.processor for one in self.devices], [one.alone.whole for one in self.devices])

    @property
    def together(self) -> Speeds:
        """The sum of the devices' speeds at the same time."""
        return _sum([one.together for one in self.devices])

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        sums = {"alone": asdict(self.alone), "together": asdict(self.together)}
        shares = {"share": self.together.whole / self.alone.whole, "share_of_processors": self.share_of_processors}
        return {**asdict(self), "sum": sums, **shares}

    @property
    def share_of_processors(self) -> float:
        """Speed of all devices at the same time as a share of the possible one."""
        return self.together.whole / self.possible


def processor_of(info: DeviceInfo) -> str:
    """Return the processor behind a device: the same for a card under two APIs, and for all devices that run on the
    CPU."""
    if info.type in (DeviceType.CPU, DeviceType.SOFTWARE):
        return "cpu"
    return info.physical_id or info.request


def possible_sum(processors: Sequence[str], speeds: Sequence[float]) -> float:
    """Return the sum over processors of their fastest device's speed. processors, speeds: one per device."""
    best: dict[str, float] = {}
    for processor, speed in zip(processors, speeds, strict=True):
        best[processor] = max(speed, best.get(processor, 0.0))
    return sum(best.values())


def measure_replicas(
    model: str,
    engines: Sequence[RemoteEngine],
    prompt_tokens: int | None,
    max_tokens: int,
    repeat: int,
    sequences: int,
    progress: Progress | None = None,
) -> ReplicaResult:
    """Prefill and decode `sequences` concurrent requests on each device, `repeat` times: each alone, then all at once
    until the slowest has finished. The engines must not speculate: the gain would depend on the text.

    prompt_tokens: None for 512, or fewer if a context is shorter. Raises UsageError if the requests do not fit a cache.
    """
    length = min(prompt_length(engine, prompt_tokens, max_tokens, sequences) for engine in engines)
    alone: list[Speeds] = []
    for done, engine in enumerate(engines):
        if progress:
            progress("measuring each device alone", done, len(engines))
        runs = engine.apply(measured_runs, sequences, length, max_tokens, repeat)
        alone.append(_speeds(runs, sequences, length, max_tokens))
    if progress:
        progress("measuring all devices together", 0, 1)
    together = [
        _speeds(runs, sequences, length, max_tokens) for runs in _all(engines, sequences, length, max_tokens, repeat)
    ]
    devices: list[DeviceSpeeds] = []
    for engine, one, other in zip(engines, alone, together, strict=True):
        info = engine.device.info
        devices.append(DeviceSpeeds(info.request, info.name, processor_of(info), one, other))
    return ReplicaResult(model, length, max_tokens, sequences, repeat, tuple(devices))


def _all(engines: Sequence[RemoteEngine], sequences: int, length: int, max_tokens: int, repeat: int) -> list[list[Run]]:
    """Return the runs of every device. Each one continues until all have finished, so that none has the machine to
    itself."""
    runs: list[list[Run]] = [[] for _ in engines]
    errors: list[BaseException] = []

    def work(at: int) -> None:
        try:
            while not errors and any(len(done) < repeat for done in runs):
                runs[at] += engines[at].apply(measured_runs, sequences, length, max_tokens, 1, None, 0)
        except BaseException as exc:  # noqa: BLE001 - raised again by the caller's thread
            errors.append(exc)

    threads = [threading.Thread(target=work, args=(at,), name=f"bench-{at}") for at in range(len(engines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return runs


def _speeds(runs: Sequence[Run], sequences: int, length: int, max_tokens: int) -> Speeds:
    """Return the medians of the runs."""
    answers = sequences * max_tokens
    return Speeds(
        statistics.median(sequences * length / run.prefill_seconds for run in runs),
        statistics.median(run.decoded / run.decode_seconds for run in runs),
        statistics.median(answers / run.seconds for run in runs),
    )


def _sum(speeds: Sequence[Speeds]) -> Speeds:
    return Speeds(
        sum(one.prefill for one in speeds), sum(one.decode for one in speeds), sum(one.whole for one in speeds)
    )

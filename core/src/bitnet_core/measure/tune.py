"""Measure, in a few seconds, the speed of each device with a model and its best tilings (`bitnet tune`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bitnet_hal.device import Device, DeviceInfo, DeviceType
from bitnet_hal.discovery.order import rank
from bitnet_hal.discovery.registry import kernels_hash
from bitnet_hal.discovery.selection import devices, open_listed
from bitnet_hal.errors import GpuError
from bitnet_hal.isolation import describe_error
from bitnet_hal.tuning.measured import Measured, keep

from bitnet_core.engine.engine import Engine
from bitnet_core.measure.products import ProductTime, time_products
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.progress import Progress

LIMIT = 10.0
"""Seconds for all devices together; devices that have not started by then are skipped."""
_SLICES = (1, 3)
"""Numbers of layers of the two truncated models that are timed; the difference gives the time of a layer."""
_PROMPT = 8
_TOKENS = 48
_WARM_UP = 12
_STEPS_SECONDS = 0.25
_CONTEXT = 128

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TunedDevice:
    """The speed of one device. token_seconds: duration of a decode step of the whole model, 0 if it was not measured.
    reason: why it was not."""

    info: DeviceInfo
    token_seconds: float
    products: tuple[ProductTime, ...] = ()
    reason: str = ""


class TruncatedSource:
    """The first layers of a model."""

    def __init__(self, source: ModelSource, layers: int) -> None:
        self._source = source
        self.config: ModelConfig = replace(source.config, n_layers=layers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def tune(
    source: ModelSource,
    name: str,
    limit: float = LIMIT,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[TunedDevice]:
    """Time a decode step and its products on every device, store the results for later choices of devices and tilings,
    and return them, the fastest device first. name: the model's name in the stored results.

    Each device gets an equal share of the remaining time, software devices last. The measurement of a device is not
    interrupted, so compiling kernels for the first time may exceed the limit. A device that fails is listed with the
    reason.
    """
    present = [info for info in devices() if not info.fake]
    present.sort(key=lambda info: (info.type is DeviceType.SOFTWARE, -rank(info)))  # software is ranked last anyway
    end = clock() + limit
    speeds: list[TunedDevice] = []
    results: list[tuple[DeviceInfo, Measured]] = []
    for number, info in enumerate(present):
        if progress:
            progress(f"timing {info.request}", number, len(present))
        now = clock()
        if now >= end:
            speeds.append(TunedDevice(info, 0.0, reason=f"not started within {limit:g} s"))
            continue
        speed, measured = _device(source, name, info, now + (end - now) / (len(present) - number), clock)
        speeds.append(speed)
        if measured:
            results.append((info, measured))
    keep(results, kernels_hash)
    return sorted(speeds, key=lambda speed: speed.token_seconds or float("inf"))


def _device(
    source: ModelSource, name: str, info: DeviceInfo, deadline: float, clock: Callable[[], float]
) -> tuple[TunedDevice, Measured | None]:
    try:
        device = open_listed(info)
        try:
            seconds, timed = time_model(source, device, deadline, clock)
        finally:
            device.close()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        log.debug("timing %s failed", info.request, exc_info=error)
        return TunedDevice(info, 0.0, reason=str(error) if isinstance(error, GpuError) else describe_error(error)), None
    tilings = {product.key: product.tuning for product in timed if product.tuning}
    return TunedDevice(info, seconds, tuple(timed)), Measured(name, seconds, tilings)


def time_model(
    source: ModelSource, device: Device, deadline: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, list[ProductTime]]:
    """Return the seconds of a decode step and the times of its products.

    A small model is timed as a whole. For a larger one, two truncated models are timed, and their difference gives the
    time of a layer; if no time is left for the second one, a layer is estimated as the sum of its products.
    """
    layers = source.config.n_layers
    delta = source.config.delta
    first, second = (count * (delta.interval if delta else 1) for count in _SLICES)  # whole intervals of delta nets
    few, timed = _part(source, device, layers if layers <= second else first, deadline, clock)
    if layers <= second:
        return few, timed
    if clock() >= deadline:
        products = sum(one.seconds * one.launches for one in timed if not one.head) / first
        return few + (layers - first) * products, timed
    more, _ = _part(source, device, second, None, clock)
    return few + max(0.0, more - few) * (layers - first) / (second - first), timed


def _part(
    source: ModelSource, device: Device, layers: int, deadline: float | None, clock: Callable[[], float]
) -> tuple[float, list[ProductTime]]:
    """Return the seconds of a step of the first layers, and with a deadline the times of its products."""
    context = min(_CONTEXT, source.config.context)
    engine = Engine(TruncatedSource(source, layers), device, EngineOptions(context=context, max_sequences=1))
    try:
        seconds = _step(engine, clock)
        return seconds, [] if deadline is None else time_products(engine, deadline, clock)
    finally:
        engine.free()


def _step(engine: Engine, clock: Callable[[], float]) -> float:
    """Return the seconds per decoded token after a warm-up that compiles and records."""
    prompt = [token % engine.config.tokens for token in range(1, 1 + min(_PROMPT, engine.max_model_len // 4))]
    tokens = min(_TOKENS, engine.max_model_len - len(prompt) - 1)
    request = engine.add_request(prompt, max_tokens=tokens)
    began = 0.0
    timed = 0
    while request.finish_reason is None and (not timed or clock() - began < _STEPS_SECONDS):
        before = request.generated_tokens
        start = clock()
        engine.step()
        if before >= min(_WARM_UP, tokens // 2):
            began = began or start
            timed += request.generated_tokens - before
    seconds = max(clock() - began, 1e-9) / max(1, timed)
    engine.finish_request(request)
    return seconds

"""`bitnet tune`: how fast each device is at a model, and which tilings it should use, found in a few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bitnet_hal.device import Device, DeviceInfo, DeviceType
from bitnet_hal.discovery.registry import kernels_hash
from bitnet_hal.discovery.selection import devices, open_listed, rank
from bitnet_hal.errors import GpuError
from bitnet_hal.isolation import described
from bitnet_hal.tuning.measured import Measured, keep

from bitnet_core.engine.engine import Engine
from bitnet_core.engine.options import EngineOptions
from bitnet_core.measure.products import ProductTime, time_products
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource

LIMIT = 10.0
"""Seconds for all devices together; what is not begun by then is left out."""
_SLICES = (1, 3)
"""Layers of the parts of a model that are timed: the other layers take what these differ by."""
_PROMPT, _TOKENS, _WARM_UP, _STEPS_SECONDS = 8, 48, 12, 0.25
_CONTEXT = 128

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """What was found of one device. token_seconds: of a decode step of the whole model, 0 where `reason` says why it is
    not known."""

    info: DeviceInfo
    token_seconds: float
    products: tuple[ProductTime, ...] = ()
    reason: str = ""


class TruncatedSource:
    """A model of which only the first layers are there."""

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
) -> list[DeviceSpeed]:
    """Time the products and one decode step of a model on every device, best first, and keep what was found for the
    choice of devices and tilings to come. name: of the model, in the cache. progress(device, done, total).

    Each device gets an equal share of the time that is left, software last; one that was begun is finished, so that
    kernels that are compiled for the first time may take longer. A device that fails is listed with the reason.
    """
    present = [info for info in devices() if not info.fake]
    present.sort(key=lambda info: (info.type is DeviceType.SOFTWARE, -rank(info)))  # software keeps its place anyhow
    end, found, kept = clock() + limit, list[DeviceSpeed](), list[tuple[DeviceInfo, Measured]]()
    for number, info in enumerate(present):
        if progress:
            progress(f"timing {info.request}", number, len(present))
        now = clock()
        if now >= end:
            found.append(DeviceSpeed(info, 0.0, reason=f"not begun within {limit:g} s"))
            continue
        speed, measured = _device(source, name, info, now + (end - now) / (len(present) - number), clock)
        found.append(speed)
        kept += [(info, measured)] if measured else []
    keep(kept, kernels_hash)
    return sorted(found, key=lambda speed: speed.token_seconds or float("inf"))


def _device(
    source: ModelSource, name: str, info: DeviceInfo, deadline: float, clock: Callable[[], float]
) -> tuple[DeviceSpeed, Measured | None]:
    try:
        device = open_listed(info)
        try:
            seconds, timed = time_model(source, device, deadline, clock)
        finally:
            device.close()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        log.debug("%s is not timed", info.request, exc_info=error)
        return DeviceSpeed(info, 0.0, reason=str(error) if isinstance(error, GpuError) else described(error)), None
    tilings = {product.key: product.tuning for product in timed if product.tuning}
    return DeviceSpeed(info, seconds, tuple(timed)), Measured(name, seconds, tilings)


def time_model(
    source: ModelSource, device: Device, deadline: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, list[ProductTime]]:
    """Seconds of a decode step, and of its products. The step is that of the whole model where it is small, else
    computed from parts of it with few layers, which are alike; where no time is left for a second part, a layer takes
    what its products do."""
    layers, delta = source.config.n_layers, source.config.delta
    first, second = (count * (delta.interval if delta else 1) for count in _SLICES)  # as many of each kind of layer
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
    """Seconds of a step of the first layers, and of its products where there is a deadline for them."""
    context = min(_CONTEXT, source.config.context)
    engine = Engine(TruncatedSource(source, layers), device, EngineOptions(context=context, max_sequences=1))
    try:
        seconds = _step(engine, clock)
        return seconds, [] if deadline is None else time_products(engine, deadline, clock)
    finally:
        engine.free()


def _step(engine: Engine, clock: Callable[[], float]) -> float:
    """Seconds a token of a text after a warm-up, which compiles and records."""
    prompt = [token % engine.config.tokens for token in range(1, 1 + min(_PROMPT, engine.max_model_len // 4))]
    tokens = min(_TOKENS, engine.max_model_len - len(prompt) - 1)
    text = engine.add_request(prompt, max_tokens=tokens)
    began, timed = 0.0, 0
    while text.finish_reason is None and (not timed or clock() - began < _STEPS_SECONDS):
        before, start = text.generated_tokens, clock()
        engine.step()
        if before >= min(_WARM_UP, tokens // 2):
            began = began or start
            timed += text.generated_tokens - before
    seconds = max(clock() - began, 1e-9) / max(1, timed)
    engine.finish_request(text)
    return seconds

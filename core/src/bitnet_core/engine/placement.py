"""Divide the layers of a model among devices, by their memory and their measured speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bitnet_hal.device import Device, DeviceType
from bitnet_hal.errors import OutOfMemoryError, UsageError
from bitnet_hal.kernels.catalogue import KV_BLOCK
from bitnet_hal.rounding import ceil_div

from bitnet_core.engine.fit import FEWEST_BLOCKS, predict
from bitnet_core.engine.kv_cache.cache import cache_bytes
from bitnet_core.engine.layer_times import head_seconds, layer_seconds
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.memory import plan_memory


class Room(NamedTuple):
    """The memory reserved for requests: tokens of keys and values, rows of a prompt step, and concurrent requests
    (None: as many as the options allow)."""

    tokens: int
    rows: int
    sequences: int | None


USUAL_ROOM = Room(tokens=4096, rows=256, sequences=None)
LEAST_ROOM = Room(tokens=FEWEST_BLOCKS * KV_BLOCK, rows=32, sequences=1)
"""The smallest sizes that recovery from lack of memory reaches."""


def offloaded_layers(source: ModelSource, options: EngineOptions, device: Device) -> int:
    """Return how many of the first layers the CPU computes for a device.

    "auto" offloads no layer if the model fits the device, or if that is not a GPU with its own memory; at least one
    layer stays on the device. Raises UsageError if the option's number is not possible.
    """
    layers = source.config.n_layers
    info = device.info
    if options.offload == "none":
        return 0
    if options.offload == "auto":
        if info.type is not DeviceType.GPU or predict(source, device, options).loads:
            return 0
        return layers - max(1, most_layers(source, options, device, last=True))
    if options.offload and info.type is DeviceType.CPU:
        raise UsageError(f"offload {options.offload}: {info.request} is a CPU already")
    if options.offload >= layers:
        raise UsageError(f"offload {options.offload}: the model has {layers} layers, and one must stay on the device")
    return options.offload


def most_layers(
    source: ModelSource,
    options: EngineOptions,
    device: Device,
    *,
    devices: int = 2,
    first: bool = False,
    last: bool = False,
    room: Room = USUAL_ROOM,
) -> int:
    """Return the largest number of layers for which one of several devices has memory. first: it has the embedding too;
    last: it has the head too."""
    config = options.config_of(source.config)
    least, most = 0, config.n_layers - (devices > 1)
    while least < most:
        count = (least + most + 1) // 2
        start = 0 if first else config.n_layers - count if last else 1
        needed = needed_bytes(source, options, device, config.part(start, count), devices, room)
        if needed <= device.free_memory():
            least = count
        else:
            most = count - 1
    return least


def needed_bytes(
    source: ModelSource,
    options: EngineOptions,
    device: Device,
    part: ModelConfig,
    devices: int,
    room: Room = USUAL_ROOM,
) -> int:
    """Return the bytes of the layers of one of several devices."""
    context = options.context_of(part)
    blocks = ceil_div(min(context, room.tokens), KV_BLOCK)
    cache = cache_bytes(part, options.kv_cache_type, blocks, 1)
    sequences = room.sequences or options.max_sequences
    sizes = {"context": context, "sequences": sequences, "chunk": room.rows}
    groups = min(devices, sequences)
    return plan_memory(source, part, device.info, **sizes, groups=groups, kv_cache=cache).total


def split_layers(source: ModelSource, options: EngineOptions, devices: Sequence[Device]) -> list[int]:
    """Return the number of layers of each device, in proportion to its speed as far as its memory allows. It is 0 for
    devices without memory for a layer, but at least 1 for the last device.

    Raises OutOfMemoryError if all devices together cannot hold the model's layers, even with LEAST_ROOM for requests.
    """
    layers = source.config.n_layers
    for room in (USUAL_ROOM, LEAST_ROOM):
        used = list(devices)
        most = _most_of_each(source, options, used, room)
        while 0 in most[:-1]:
            del used[most.index(0)]
            most = _most_of_each(source, options, used, room)
        if sum(most) >= layers:
            break
    else:
        most = _most_of_each(source, options, devices, LEAST_ROOM)
        names = ", ".join(f"{device.info.request} {count}" for device, count in zip(devices, most, strict=True))
        raise OutOfMemoryError(
            f"the devices have memory for {sum(most)} of {layers} layers together ({names})",
            backend=devices[-1].info.backend,
            device=devices[-1].info.name,
            operation="load",
            hint="Add a device to the split, such as cpu:N, or use --offload with one GPU",
        )
    if len(used) == 1:
        return [0] * (len(devices) - 1) + [layers]
    seconds = [layer_seconds(source, options, device) for device in used]
    counts = balanced(layers, most, seconds, head_seconds(source, options, used[-1], seconds[-1]))
    given = {id(device): count for device, count in zip(used, counts, strict=True)}
    return [given.get(id(device), 0) for device in devices]


def _most_of_each(source: ModelSource, options: EngineOptions, devices: Sequence[Device], room: Room) -> list[int]:
    """Return most_layers of each device of a split."""
    last = len(devices) - 1
    return [
        most_layers(source, options, device, devices=last + 1, first=at == 0, last=at == last, room=room)
        for at, device in enumerate(devices)
    ]


def balanced(layers: int, room: Sequence[int], seconds: Sequence[float], head: float) -> list[int]:
    """Divide layers so that the slowest device takes as little time as possible. room: maximum layers of each device;
    seconds: its time for a layer; head: the last device's time for the head."""
    counts = [1] * len(room)
    heads = [0.0] * (len(room) - 1) + [head]
    for _ in range(layers - len(room)):
        open_to = [at for at, count in enumerate(counts) if count < room[at]]
        quickest = min(open_to, key=lambda at: (counts[at] + 1) * seconds[at] + heads[at])
        counts[quickest] += 1
    return counts

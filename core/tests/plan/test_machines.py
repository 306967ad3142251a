"""On machines of every size `auto` takes the right device, and a 2B model fits with its cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from bitnet_core.engine.capacity import cache_blocks, free_share, widest_chunk
from bitnet_core.engine.kv_cache.cache import block_bytes
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan.memory import plan_memory
from bitnet_hal.device import DeviceInfo, DeviceType, TransferMode
from bitnet_hal.discovery.order import ranked
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.tuning import measured

_GIB = 1 << 30


def _nvidia(gib: int, capability: str, index: int = 0) -> DeviceInfo:
    return DeviceInfo(
        "cuda",
        index,
        f"NVIDIA GPU of {gib} GiB",
        DeviceType.GPU,
        vendor="NVIDIA",
        total_memory=gib * _GIB,
        max_allocation=gib * _GIB,
        max_binding=gib * _GIB,
        physical_id=f"0000:{index + 1:02x}:00.0",
        extra={"compute_capability": capability},
    )


def _cpu(gib: int) -> DeviceInfo:
    total, unified = gib * _GIB, TransferMode.UNIFIED
    return DeviceInfo("cpu", 0, "CPU", DeviceType.CPU, total_memory=total, transfer=unified)


def _integrated(backend: str, gib: int) -> DeviceInfo:
    total, unified = gib * _GIB, TransferMode.UNIFIED
    place = "0000:00:02.0"
    return DeviceInfo(
        backend, 0, "iGPU", DeviceType.INTEGRATED, total_memory=total, transfer=unified, physical_id=place
    )


MACHINES: dict[str, tuple[DeviceInfo, ...]] = {
    "no-gpu": (_cpu(16),),
    "low-memory": (_cpu(8), _nvidia(4, "7.5")),
    "mid-8": (_cpu(16), _nvidia(8, "8.6")),
    "mid-16": (_cpu(32), _nvidia(16, "8.9")),
    "high-80": (_cpu(128), _nvidia(80, "8.0")),
    "high-141": (_cpu(256), _nvidia(141, "9.0")),
    "multi-gpu": (_cpu(128), *(_nvidia(24, "8.9", index) for index in range(4))),
    "integrated": (_cpu(16), _integrated("level-zero", 16), _integrated("vulkan", 16)),
}
"""Devices of each machine, by its name; each has a CPU. The floor of bitnet-cuda is compute capability 7.5."""


class Described(NumpyDevice):
    """A device with a given description; 9/10 of its memory is free."""

    def free_memory(self) -> int:
        return self.info.total_memory * 9 // 10


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "path", lambda: tmp_path / "tuned.json")


@pytest.mark.parametrize(
    ("machine", "best", "count"),
    [
        ("no-gpu", "cpu:0", 1),
        ("low-memory", "cuda:0", 2),
        ("high-141", "cuda:0", 2),
        ("multi-gpu", "cuda:0", 5),
        ("integrated", "cpu:0", 2),  # one card under two backends
    ],
)
def test_what_auto_takes(machine: str, best: str, count: int) -> None:
    order = ranked(MACHINES[machine])
    assert (order[0].request, len(order)) == (best, count)


DEVICES = [pytest.param(info, id=f"{name}-{info.request}") for name, infos in MACHINES.items() for info in infos]


@pytest.mark.parametrize("info", DEVICES)
def test_a_model_of_2b_and_its_cache_fit(info: DeviceInfo) -> None:
    device, source, options = Described(info), SyntheticSource("2b4t"), EngineOptions()
    chunk = widest_chunk(source.config, info, options.prefill_chunk, options.max_sequences)
    context = options.context_of(source.config)
    plan = plan_memory(source, source.config, info, context=context, sequences=options.max_sequences, chunk=chunk)
    blocks = cache_blocks(options, source.config, info, options.max_sequences, free_share(device, plan.total))
    cache = 2 * source.config.n_layers * blocks * block_bytes(source.config, options.kv_cache_type)
    assert plan.total + cache <= device.free_memory()
    full = options.max_sequences * source.config.context
    positions = blocks * 64
    assert positions == full if info.total_memory >= 80 << 30 and info.type is DeviceType.GPU else positions <= full
    assert positions >= 4096  # one sequence of the whole context, even on 4 GiB
    device.close()

"""On machines of every size `auto` takes the right device, and a 2B model and its cache fit or are said not to."""

from __future__ import annotations

from pathlib import Path

import pytest
from bitnet_core.engine.kv_cache.cache import block_bytes
from bitnet_core.engine.options import EngineOptions, free_share, widest_chunk
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.plan.memory import plan_memory
from bitnet_hal.device import DeviceInfo, DeviceType
from bitnet_hal.discovery.selection import ranked
from bitnet_hal.reference.device import NumpyDevice
from bitnet_hal.testing.scenarios import SCENARIOS
from bitnet_hal.tuning import measured


class Described(NumpyDevice):
    """A device of which only the description and its free memory matter."""

    def free_memory(self) -> int:
        return self.info.total_memory * 9 // 10


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "path", lambda: tmp_path / "tuned.json")


@pytest.mark.parametrize(
    ("scenario", "best", "count"),
    [
        ("no-gpu", "cpu:0", 1),
        ("low-memory", "cuda:0", 2),
        ("high-141", "cuda:0", 2),
        ("multi-gpu", "cuda:0", 5),
        ("integrated", "cpu:0", 2),  # one card under two backends
    ],
)
def test_what_auto_takes(scenario: str, best: str, count: int) -> None:
    order = ranked(SCENARIOS[scenario])
    assert (order[0].request, len(order)) == (best, count)


DEVICES = [pytest.param(info, id=f"{name}-{info.request}") for name, infos in SCENARIOS.items() for info in infos]


@pytest.mark.parametrize("info", DEVICES)
def test_a_model_of_2b_and_its_cache_fit(info: DeviceInfo) -> None:
    device, source, options = Described(info), SyntheticSource("2b4t"), EngineOptions()
    chunk = widest_chunk(source.config, info, options.prefill_chunk, options.max_sequences)
    plan = plan_memory(source, kv_cache=0, sequences=options.max_sequences, chunk=chunk)
    blocks = options.cache_blocks(source.config, info, options.max_sequences, free_share(device, plan.total))
    cache = 2 * source.config.n_layers * blocks * block_bytes(source.config, options.kv_dtype)
    assert plan.total + cache <= device.free_memory()
    full = options.max_sequences * source.config.context
    positions = blocks * 64
    assert positions == full if info.total_memory >= 80 << 30 and info.type is DeviceType.GPU else positions <= full
    assert positions >= 4096  # one text of the whole context, even on 4 GiB
    device.close()

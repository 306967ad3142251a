"""Memory of the key/value cache without kv_cache_size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bitnet_core.engine.capacity import cache_blocks, free_share, share_rule
from bitnet_core.engine.kv_cache.cache import block_bytes
from bitnet_core.engine.recovery import OomRecovery
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.formats.synthetic_shapes import SHAPES
from bitnet_core.options.engine import EngineOptions, nbytes
from bitnet_core.plan.memory import plan_memory
from bitnet_hal.device import DeviceType
from bitnet_hal.errors import OutOfMemoryError, UsageError
from bitnet_hal.kernels.catalogue import KV_BLOCK

GIB = 1 << 30


def device_with(faulty: Any, kind: DeviceType, free: int, total: int = 0) -> Any:
    device = faulty(type=kind, total_memory=total, max_allocation=0, max_binding=0)
    device.inner.free_memory = lambda: free
    return device


@pytest.mark.parametrize(
    ("kind", "free", "total", "share"),
    [
        (DeviceType.GPU, 10 * GIB, 12 * GIB, 4 * GIB),
        (DeviceType.GPU, -1, 12 * GIB, 5 * GIB),  # a driver that does not tell
        (DeviceType.GPU, -1, 0, GIB),  # nor that
        (DeviceType.INTEGRATED, 10 * GIB, 12 * GIB, GIB),
        (DeviceType.CPU, 2 * GIB, 12 * GIB, GIB // 2),
        (DeviceType.SOFTWARE, -1, 12 * GIB, GIB),
    ],
)
def test_a_share_of_what_is_free(faulty: Any, kind: DeviceType, free: int, total: int, share: int) -> None:
    assert free_share(device_with(faulty, kind, free, total), taken=2 * GIB) == share


def test_64_texts_fit_a_large_gpu_without_an_option(faulty: Any) -> None:
    """2B-4T on 139 GB: 64 texts of 256 tokens, and of the whole context too."""
    config, options = SHAPES["2b4t"], EngineOptions(max_sequences=64)
    device = device_with(faulty, DeviceType.GPU, 138 * 10**9, 139 * 10**9)
    plan = plan_memory(SyntheticSource("2b4t"), config, device.info, context=config.context, sequences=64, chunk=1024)
    assert plan.decode_scratch > 64 * 4 * config.vocab  # counted: logits of 64 rows alone are 33 MB
    share = free_share(device, plan.total)
    blocks = cache_blocks(options, config, device.info, 64, share)
    assert blocks >= 64 * 256 // KV_BLOCK
    taken = plan.total + 2 * config.n_layers * blocks * block_bytes(config, "f16")
    assert taken < device.free_memory()
    assert blocks == 64 * config.context // KV_BLOCK  # and never more than full texts need


def test_a_full_device_still_gets_a_small_cache(faulty: Any) -> None:
    device = device_with(faulty, DeviceType.CPU, 0)
    blocks = cache_blocks(EngineOptions(), SHAPES["tiny"], device.info, 4, free_share(device, 0))
    assert blocks == 8


def test_the_budget_that_was_asked_for_counts(make_engine: Callable[..., Any], faulty: Any) -> None:
    assert make_engine("silu", kv_cache_size=1 << 20).memory()["kv_cache_bytes"] <= 1 << 20


def test_the_rule_is_told(bitnet_help: Callable[[str], str], faulty: Any) -> None:
    assert "half of the memory" in share_rule(faulty(type=DeviceType.GPU).info)
    assert "1 GiB" in share_rule(faulty().info)
    for command, options in {"run": 3, "chat": 3, "bench": 1}.items():
        shown = bitnet_help(command)
        assert "a quarter of" in shown
        assert all(option in shown for option in ("--kv-cache-size", "--max-sequences", "--eviction")[:options])


@pytest.fixture
def bitnet_help() -> Callable[[str], str]:
    from bitnet_core.cli.app import build_app
    from typer.testing import CliRunner

    def shown(command: str) -> str:
        output = CliRunner().invoke(build_app(), [command, "--help"], env={"COLUMNS": "200"}).output
        return " ".join(output.replace("│", " ").split())

    return shown


@pytest.mark.parametrize(
    ("text", "expected"), [("800M", 800 << 20), ("4g", 4 << 30), ("1.5GiB", 3 << 29), ("123", 123), ("2 KB", 2048)]
)
def test_sizes(text: str, expected: int) -> None:
    assert nbytes(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "4 apples", "1e9", "G", "9" * 40])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a valid size"):
        nbytes(text)


def test_the_ladder_names_options_that_exist(bitnet_help: Callable[[str], str]) -> None:
    class Nothing:
        drop_scratch = shrink_cache = halve_chunk = fewer_sequences = offload_more = lambda self: False

    with pytest.raises(OutOfMemoryError) as caught:
        OomRecovery(Nothing()).recover(OutOfMemoryError("full", requested=1))
    named = [word.strip(",") for word in caught.value.hint.split() if word.startswith("--")]
    assert len(named) == 6
    assert all(f"{name} " in bitnet_help("run") for name in named)

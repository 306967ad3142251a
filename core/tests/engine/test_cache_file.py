"""The prompt cache goes to a file and comes back, on this model only, and hostile files change nothing."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import bitnet_core
import pytest
from bitnet_core.engine.cache_file import MAGIC
from bitnet_core.errors import ModelError
from bitnet_hal.errors import UsageError

PROMPT = "Once upon a time there was a fox who lived in a big forest. " * 6


@pytest.fixture(scope="module")
def model() -> Iterator[bitnet_core.Model]:
    with bitnet_core.load(None, "numpy") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def saved(model: bitnet_core.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state") / "fox.state"
    model.generate(PROMPT, max_tokens=4)
    assert model.save_state(path) >= 1
    return path


def test_another_process_need_not_compute_it_again(model: bitnet_core.Model, saved: Path) -> None:
    expected = model.generate(PROMPT, max_tokens=4)
    with bitnet_core.load(None, "numpy") as fresh:
        taken = fresh.load_state(saved)
        assert fresh.load_state(saved) == 0  # known already
        again = fresh.generate(PROMPT, max_tokens=4)
        assert (again.tokens, again.cached_tokens) == (expected.tokens, expected.cached_tokens)
        assert taken * 64 >= again.cached_tokens >= 64


def test_a_split_saves_and_takes_the_same_state(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITNET_GPU_FAKE", "cuda,vulkan")
    with bitnet_core.load(None, split="cuda:2,vulkan:4") as split:
        assert split.load_state(saved) >= 1
        assert split.generate(PROMPT, max_tokens=4).cached_tokens >= 64
        split.save_state(tmp_path / "split.state")
    with bitnet_core.load(None, "numpy") as whole:
        assert whole.load_state(tmp_path / "split.state") >= 1
        assert whole.generate(PROMPT, max_tokens=4).cached_tokens >= 64


def test_what_is_there_stays(saved: Path) -> None:
    """A cache of one free block takes one block, and gives up nothing."""
    with bitnet_core.load(None, "numpy", context=128, max_sequences=1) as small:
        text = small.generate("The little dog " * 15, max_tokens=2)
        free = len(small.engine.block_pool._free)
        assert small.load_state(saved) <= free
        assert small.generate("The little dog " * 15, max_tokens=2).tokens == text.tokens


def test_a_file_is_not_replaced_unasked(model: bitnet_core.Model, saved: Path) -> None:
    with pytest.raises(UsageError, match="exists"):
        model.save_state(saved)
    assert model.save_state(saved, force=True) >= 1


def test_another_kind_of_cache(saved: Path) -> None:
    with bitnet_core.load(None, "numpy", kv_cache_type="f32") as other, pytest.raises(ModelError, match="another kv"):
        other.load_state(saved)


def _header(data: bytes, **changes: object) -> bytes:
    """The file with another header and a hash that fits."""
    start = len(MAGIC) + 4
    length = struct.unpack("<I", data[len(MAGIC) : start])[0]
    header = json.dumps(json.loads(data[start : start + length]) | changes).encode()
    body = MAGIC + struct.pack("<I", len(header)) + header + data[start + length : -32]
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "not a saved state"),
        (lambda data: b"\x80\x04K\x05.", "not a saved state"),  # a pickle
        (lambda data: data[:-1], "truncated"),
        (lambda data: data + b"x", "data added"),
        (lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:], "damaged"),
        (lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:], "damaged"),
        (lambda data: MAGIC + b"\xff\xff\xff\xff" + data[len(MAGIC) + 4 :], "damaged"),
        (lambda data: MAGIC + struct.pack("<I", 2000) + b"[" * 2000, "damaged"),
        (lambda data: MAGIC + struct.pack("<I", 2) + b"[]", "damaged"),
        (lambda data: _header(data, blocks=10**18), "truncated"),
        (lambda data: _header(data, blocks=-1), "damaged"),
        (lambda data: _header(data, blocks=1.5), "damaged"),
        (lambda data: _header(data, states=-1), "damaged"),
        (lambda data: _header(data, states=1.5), "damaged"),
        (lambda data: _header(data, model="0" * 64), "another model"),
        (lambda data: _header(data, size=1), "another size"),
    ],
)
def test_hostile_files(
    model: bitnet_core.Model, saved: Path, tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / "hostile"
    path.write_bytes(damage(saved.read_bytes()))
    before = model.engine.block_pool.cached
    with pytest.raises(ModelError, match=message):
        model.load_state(path)
    assert model.engine.block_pool.cached == before


def test_files_that_cannot_be_read(model: bitnet_core.Model, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ModelError, match="cannot be read"):
            model.load_state(path)


def test_warmup_leaves_nothing_to_compile(model: bitnet_core.Model) -> None:
    with bitnet_core.load(None, "numpy") as fresh:
        assert fresh.warmup() > 0
        compiled = len(fresh.engine.worker.launcher._compiled)
        fresh.generate("The little dog", max_tokens=4)
        assert len(fresh.engine.worker.launcher._compiled) == compiled
        assert not fresh.engine.scheduler.running


def test_stats_tell_all(model: bitnet_core.Model) -> None:
    model.generate("The", max_tokens=8)
    found = model.stats()
    host = found["host"]
    assert 0 < host["resident_bytes"] < host["total_bytes"]
    assert host["resident_percent"] == pytest.approx(100 * host["resident_bytes"] / host["total_bytes"])
    assert found["kernel_launches_by_device"] == {"numpy:0": found["kernel_launches"]}
    assert found["seconds_per_token"] > 0
    assert 8 < found["moved_bytes_per_token"] < 4 * model.config.vocab
    assert (found["gpu_share"], found["fallbacks"], found["errors"], found["error_counts"]) == (0.0, [], [], {})
    assert {step.step for step in model.profile()} >= {"greedy decode, 1 rows"}

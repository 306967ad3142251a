"""Placement of weights: wrapped, copied, grouped or split, always with the same logits."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.engine.engine import Engine
from bitnet_core.errors import ModelError
from bitnet_core.formats.convert.convert import convert
from bitnet_core.formats.gguf import source as gguf_source
from bitnet_core.formats.open import open_model
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.plan import weight_memory
from bitnet_core.plan.upload import upload
from bitnet_core.plan.weight_sizes import weight_bytes
from bitnet_hal.device import TransferMode
from bitnet_hal.errors import UsageError
from bitnet_hal.reference.device import NumpyDevice

Make = Callable[..., Any]


def logits(source: Any, device: Any, tokens: list[int]) -> Any:
    engine = Engine(source, device, EngineOptions(kv_cache_type="f32", max_sequences=1))
    try:
        return engine.logits(tokens)
    finally:
        engine.close()


@pytest.fixture
def expected(tiny: Any) -> Any:
    return logits(tiny.TinySource(tiny.CONFIGS["silu"]), NumpyDevice(), tiny.PROMPT[:9])


@pytest.mark.parametrize("binding", [0, 1 << 20, 2048, 256])
@pytest.mark.parametrize("transfer", list(TransferMode))
def test_any_placement_gives_the_same_logits(
    faulty: Any, tiny: Any, expected: Any, transfer: TransferMode, binding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_memory, "UPLOAD_CHUNK", 100)
    device = faulty(transfer=transfer, max_binding=max(binding, 64 * 1024) if binding else 0, max_allocation=0)
    source = tiny.TinySource(tiny.CONFIGS["silu"])
    np.testing.assert_allclose(logits(source, device, tiny.PROMPT[:9]), expected, rtol=0, atol=1e-5)
    device = faulty(transfer=transfer, max_binding=binding, max_allocation=0)
    weights = upload(source, device, 4)
    largest = max(part.codes.nbytes for layer in weights.layers for part in layer.qkv.parts)
    assert largest <= (binding or 1 << 30)


def test_a_rope_table_that_cannot_be_bound_says_which_context_can(faulty: Any, make_engine: Make) -> None:
    with pytest.raises(UsageError, match=r"binds 4,096 at most. Use a context of (\d+) tokens or fewer") as caught:
        make_engine("silu", device=faulty(max_binding=4096))
    fits = int(re.findall(r"context of (\d+)", str(caught.value))[0])
    make_engine("silu", device=faulty(max_binding=4096), context=fits)
    with pytest.raises(UsageError, match="binds 4,096 at most"):
        make_engine("silu", device=faulty(max_binding=4096), context=fits + 1)


def test_copies_are_grouped_and_wrapped_weights_are_not(faulty: Any, tiny: Any) -> None:
    source = tiny.TinySource(tiny.CONFIGS["silu"])
    copied = upload(source, faulty(transfer=TransferMode.EXPLICIT_COPY), 16)
    wrapped = upload(source, faulty(), 16)
    assert [len(w.layers[0].qkv.parts) for w in (copied, wrapped)] == [1, 3]
    assert [len(w.layers[0].gate_up.parts) for w in (copied, wrapped)] == [1, 2]
    assert wrapped.wrapped_bytes == weight_bytes(source)
    assert copied.wrapped_bytes == 0
    assert copied.nbytes > weight_bytes(source)


def test_a_device_that_refuses_to_wrap_gets_copies(faulty: Any, tiny: Any) -> None:
    device = faulty()
    device.wrap = lambda host: None
    assert upload(tiny.TinySource(tiny.CONFIGS["silu"]), device, 16).wrapped_bytes == 0


@pytest.mark.parametrize(("kind", "block"), [("row", 0), ("block", 64), ("block", 128), ("block", 256)])
@pytest.mark.parametrize("transfer", list(TransferMode))
def test_scales_by_row_and_block(
    faulty: Any, tiny: Any, expected: Any, kind: str, block: int, transfer: TransferMode
) -> None:
    source = tiny.TinySource(tiny.CONFIGS["silu"], 0, kind, block)
    found = logits(source, faulty(transfer=transfer), tiny.PROMPT[:9])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_matrices_of_one_group_may_have_different_kinds_of_scales(tiny: Any, expected: Any, faulty: Any) -> None:
    sources = {
        "q": tiny.TinySource(tiny.CONFIGS["silu"], 0, "row"),
        "k": tiny.TinySource(tiny.CONFIGS["silu"], 0, "block", 64),
    }
    source = tiny.TinySource(tiny.CONFIGS["silu"])
    source.ternary = lambda name: sources.get(name[-1], tiny.TinySource(tiny.CONFIGS["silu"])).ternary(name)
    found = logits(source, faulty(transfer=TransferMode.EXPLICIT_COPY), tiny.PROMPT[:9])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_tied_heads_share_the_embedding(tiny: Any) -> None:
    tied = upload(tiny.TinySource(tiny.CONFIGS["silu"]), NumpyDevice(), 16)
    untied = upload(tiny.TinySource(tiny.CONFIGS["llama"]), NumpyDevice(), 16)
    assert tied.head is tied.embedding
    assert untied.head.parts[0].table.buffer is not untied.embedding.parts[0].table.buffer


def test_progress_ends_at_the_total(tiny: Any) -> None:
    seen: list[tuple[str, int, int]] = []
    upload(tiny.TinySource(tiny.CONFIGS["llama"]), NumpyDevice(), 16, lambda *report: seen.append(report))
    assert {what for what, _, _ in seen} == {"load"}
    assert seen[-1][1] == seen[-1][2] == weight_bytes(tiny.TinySource(tiny.CONFIGS["llama"]))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


@pytest.mark.parametrize("method", ["ternary", "dense", "vector"])
def test_a_tensor_of_a_wrong_shape_is_named(tiny: Any, method: str) -> None:
    wrong = tiny.TinySource(tiny.replace(tiny.CONFIGS["silu"], ffn=80, vocab=60, hidden=48))
    source = tiny.TinySource(tiny.CONFIGS["silu"])
    setattr(source, method, getattr(wrong, method))
    device = NumpyDevice()
    with pytest.raises(ModelError, match=r"tiny: (blk\.0\.attn_|token_embd|output_norm)"):
        upload(source, device, 16)
    assert not device._buffers


def test_a_row_wider_than_any_binding(faulty: Any, tiny: Any) -> None:
    with pytest.raises(ModelError, match="bind"):
        upload(tiny.TinySource(tiny.CONFIGS["silu"]), faulty(max_binding=128), 16)


def test_an_engine_gives_all_memory_back(make_engine: Make, tiny: Any) -> None:
    device = NumpyDevice()
    engine = make_engine("silu", device=device)
    engine.add_request(tiny.PROMPT[:20], max_tokens=5)
    while engine.step():
        pass
    engine.free()
    assert not device._buffers


def test_the_pages_of_a_file_that_is_only_copied_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q2_0 is read into other memory; I2_S of layout A lies in the file as devices want it."""
    released = []
    monkeypatch.setattr(gguf_source, "forget_pages", lambda _: released.append(1))
    for kind, often in (("q2_0", True), ("i2_s", False)):
        path = tmp_path / f"{kind}.gguf"
        convert(SyntheticSource("bonsai-tiny" if kind == "q2_0" else "tiny"), path, kind)
        released.clear()
        with closing(open_model(path)) as source:
            device = NumpyDevice()
            weights = upload(source, device, 64)
            assert bool(released) == often
            weights.free(device)
            device.close()

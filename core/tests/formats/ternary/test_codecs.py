"""Every ternary encoding against the bytes of the public tools, both ways where we write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.types import tl2_nbytes
from bitnet_core.formats.ternary import floats, hf_packed, iq_bn, q2_0, tl1, tl2, tq1_0, tq2_0
from bitnet_core.formats.ternary.codes import pack, unpack
from bitnet_core.formats.ternary.tiles import Tile
from bitnet_core.model.weights import TernaryWeight

Golden = Mapping[str, Any]


def values(weight: TernaryWeight) -> np.ndarray:
    return unpack(weight.codes, weight.columns).astype(np.int8) - 1


def dequantized(weight: TernaryWeight) -> np.ndarray:
    scales = weight.scales
    if weight.scale_kind == "row":
        scales = scales[:, None]
    if weight.scale_kind == "block":
        scales = np.repeat(scales, weight.block, axis=1)[:, : weight.columns]
    return values(weight) * scales


def weight_of(
    ternary: np.ndarray, scales: list[float] | np.ndarray, kind: Any = "tensor", block: int = 0
) -> TernaryWeight:
    rows, columns = ternary.shape
    codes = pack((ternary + 1).astype(np.uint8))
    return TernaryWeight(rows, columns, codes, np.asarray(scales, np.float32), kind, block)


@pytest.mark.parametrize(("codec", "key"), [(tq1_0, "tq1_bytes"), (tq2_0, "tq2_bytes")])
def test_tq_golden_both_ways(golden: Golden, codec: Any, key: str) -> None:
    weight = codec.decode(golden[key].reshape(-1), 16, 256)
    assert (values(weight) == golden["tq_values"]).all()
    assert weight.scale_kind == "tensor"
    assert weight.scales.tolist() == [0.7421875]
    assert bytes(codec.encode(weight)) == bytes(golden[key])


def test_tq_golden_arbitrary_bytes(golden: Golden) -> None:
    tq1 = tq1_0.codes_of(golden["tq1_random_bytes"]).astype(np.float32) - 1
    assert (tq1 == golden["tq1_random_dequant"]).all()
    legal = golden["tq2_random_bytes"].copy()
    legal[:, :64] &= ~((legal[:, :64] & legal[:, :64] >> 1 & 0x55) << 1)  # code 3 becomes 1
    expected = np.where(golden["tq2_random_dequant"] == 2, 0, golden["tq2_random_dequant"])
    assert (values(tq2_0.decode(legal.reshape(-1), 16, 256)) == expected.reshape(16, 256)).all()
    with pytest.raises(ModelError, match="illegal ternary code 3"):
        tq2_0.decode(golden["tq2_random_bytes"].reshape(-1), 16, 256)


def test_q2_0_golden(golden: Golden) -> None:
    weight = q2_0.decode(golden["q2_0_bytes"], 16, 256)
    assert (values(weight) == golden["tq_values"]).all()
    assert (dequantized(weight) == golden["tq_values"] * np.float32(0.75)).all()


def test_q2_0_blocks_of_128() -> None:
    ternary = np.random.default_rng(0).integers(-1, 2, (3, 256)).astype(np.int8)
    codes = (ternary + 1).astype(np.uint8).reshape(-1, 128, 1).reshape(-1, 32, 4)
    packed = codes[:, :, 0] | codes[:, :, 1] << 2 | codes[:, :, 2] << 4 | codes[:, :, 3] << 6
    scales = np.arange(1, 7, dtype="<f2").reshape(6, 1)
    data = np.concatenate([scales.view(np.uint8), packed], axis=1).reshape(-1)
    weight = q2_0.decode(data, 3, 256, block=128)
    assert (weight.scale_kind, weight.block, weight.scales.tolist()) == ("block", 128, [[1, 2], [3, 4], [5, 6]])
    assert (values(weight) == ternary).all()


@pytest.mark.parametrize("codec", [tq1_0, tq2_0])
def test_scales_per_block_and_per_row_survive(codec: Any) -> None:
    rng = np.random.default_rng(3)
    ternary = rng.integers(-1, 2, (5, 512)).astype(np.int8)
    ternary[2, 256:] = 0  # a block of zeros, whose scale has no meaning
    ternary[4] = 0
    per_block = weight_of(ternary, rng.integers(1, 9, (5, 2)) / 8, "block", 256)
    again = codec.decode(codec.encode(per_block), 5, 512)
    assert again.scale_kind == "block"
    assert (dequantized(again) == dequantized(per_block)).all()
    assert again.scales[2, 1] == 1
    per_row = weight_of(ternary, rng.integers(1, 9, 5) / 8, "row")
    again = codec.decode(codec.encode(per_row), 5, 512)
    assert again.scale_kind == "row"
    assert (dequantized(again) == dequantized(per_row)).all()
    one = codec.decode(codec.encode(weight_of(ternary, [0.25])), 5, 512)
    assert (one.scale_kind, one.scales.tolist()) == ("tensor", [0.25])
    nothing = codec.decode(codec.encode(weight_of(np.zeros((2, 256), np.int8), [0.25])), 2, 256)
    assert (nothing.scale_kind, nothing.scales.tolist()) == ("tensor", [1.0])


def test_tq_refuses_what_it_cannot_hold() -> None:
    ternary = np.ones((2, 256), np.int8)
    with pytest.raises(ModelError, match="range of f16"):
        tq2_0.encode(weight_of(ternary, [1e-9]))
    with pytest.raises(ModelError, match="range of f16"):
        tq2_0.encode(weight_of(ternary, [1e6]))
    with pytest.raises(ModelError, match="not a multiple of 256"):
        tq1_0.encode(weight_of(np.ones((2, 128), np.int8), [1]))
    with pytest.raises(ModelError, match="scale per 64 columns"):
        tq1_0.encode(weight_of(ternary, np.ones((2, 4)), "block", 64))


@pytest.mark.parametrize(
    ("decode", "key"),
    [
        (iq_bn.decode_iq1_bn, "iq1bn_bytes"),
        (iq_bn.decode_iq2_bn, "iq2bn_bytes"),
        (iq_bn.decode_iq2_bn_r4, "iq2bn_r4_bytes"),
    ],
)
def test_ik_golden(golden: Golden, decode: Any, key: str) -> None:
    weight = decode(golden[key], 8, 640)
    assert (values(weight) == golden["ik_values"]).all()
    assert weight.scale_kind == "row"
    assert (weight.scales == golden["ik_rowscale"]).all()


@pytest.mark.parametrize("name", ["tl1_a", "tl1_b"])
def test_tl1_golden(golden: Golden, name: str) -> None:
    rows, columns, *tile = golden[f"{name}_params"].tolist()
    codes = tl1.decode_codes(golden[f"{name}_bytes"], rows, columns, Tile(*tile))
    assert (unpack(codes, columns).astype(np.int8) - 1 == golden[f"{name}_values"]).all()
    tail = np.zeros(32, np.uint8)
    tail[:4] = np.array([0.5], "<f4").view(np.uint8)
    data = np.concatenate([golden[f"{name}_bytes"], tail])
    weight = tl1.decode(data, rows, columns, {(rows, columns): Tile(*tile)})
    assert (weight.codes == codes).all()
    assert weight.scales.tolist() == [0.5]


@pytest.mark.parametrize("name", ["tl2_a", "tl2_b"])
def test_tl2_golden(golden: Golden, name: str) -> None:
    rows, columns, *tile = golden[f"{name}_params"].tolist()
    codes = tl2.decode_codes(golden[f"{name}_bytes"], rows, columns, Tile(*tile))
    assert (unpack(codes, columns).astype(np.int8) - 1 == golden[f"{name}_values"]).all()


@pytest.mark.parametrize(
    ("codec", "nbytes", "given"),
    [(tl1, 1024 * 4096 // 4 + 32, Tile(256, 128, 32)), (tl2, tl2_nbytes(1024, 4096), Tile(256, 96))],
)
def test_tiles_of_known_shapes_need_not_be_given(codec: Any, nbytes: int, given: Tile) -> None:
    """The shape of Llama3-8B's keys, with bitnet.cpp's tile for it."""
    nibbles = np.array([a << 4 | b for a in range(9) for b in range(9)], np.uint8)
    data = np.random.default_rng(0).choice(nibbles, nbytes)
    data[-32:-28] = np.array([0.5], "<f4").view(np.uint8)
    expected = codec.decode(data, 1024, 4096, {(1024, 4096): given})
    assert (codec.decode(data, 1024, 4096).codes == expected.codes).all()
    other = codec.decode(data, 1024, 4096, {(1024, 4096): given._replace(rows=128)})
    assert (other.codes != expected.codes).any()


def test_tl_refusals(golden: Golden) -> None:
    with pytest.raises(ModelError, match="do not store their tile sizes"):
        tl1.decode(np.zeros(256 * 256 // 4 + 32, np.uint8), 256, 256)
    with pytest.raises(ModelError, match="does not divide"):
        tl1.decode_codes(golden["tl1_a_bytes"], 256, 256, Tile(100, 64, 32))
    with pytest.raises(ModelError, match="illegal TL1 nibble"):
        tl1.decode_codes(golden["tl1_a_bytes"] | 0xF0, 256, 256, Tile(*golden["tl1_a_params"].tolist()[2:]))
    with pytest.raises(ModelError, match="illegal TL2 nibble"):
        tl2.decode_codes(golden["tl2_a_bytes"] | 0xF0, 256, 384, Tile(*golden["tl2_a_params"].tolist()[2:]))
    with pytest.raises(ModelError, match="TL2 tile"):
        tl2.decode_codes(golden["tl2_a_bytes"], 256, 384, Tile(96, 96))


@pytest.mark.parametrize("name", ["hf_packed", "hf_packed_odd"])
def test_hf_packed_golden_both_ways(golden: Golden, name: str) -> None:
    expected, packed = golden[f"{name}_values"], golden[f"{name}_bytes"]
    codes = hf_packed.decode_codes(packed, len(expected))
    assert (unpack(codes, expected.shape[1]).astype(np.int8) - 1 == expected).all()
    assert bytes(hf_packed.encode_codes(codes, *expected.shape)) == bytes(packed)


def test_absmean_golden(golden: Golden) -> None:
    master = golden["absmean_in"]
    weight = floats.absmean(16, 64, lambda part: master[part])
    assert (values(weight) == golden["absmean_codes"]).all()
    assert weight.scales[0] == pytest.approx(golden["absmean_scale"], rel=1e-7)
    with pytest.raises(ModelError, match="not a number"):
        floats.absmean(16, 64, lambda part: master[part] * np.float32("nan"))


def test_floats_that_are_ternary_already() -> None:
    ternary = np.array([[0, 0, 0], [1, -1, 0]], np.float32)
    weight = floats.exact(2, 3, lambda part: ternary[part] * np.float32(0.3))
    assert (values(weight) == ternary).all()
    assert weight.scales.tolist() == [np.float32(0.3)]
    with pytest.raises(ModelError, match="not ternary"):
        floats.exact(2, 3, lambda part: ternary[part] + np.float32(0.3))


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """Decoding one row (or tile) at a time yields the same matrices."""
    monkeypatch.setattr("bitnet_core.formats.ternary.codes.CHUNK", 1)
    test_tq_golden_both_ways(golden, tq1_0, "tq1_bytes")
    test_ik_golden(golden, iq_bn.decode_iq2_bn_r4, "iq2bn_r4_bytes")
    test_tl1_golden(golden, "tl1_b")
    test_tl2_golden(golden, "tl2_b")
    test_hf_packed_golden_both_ways(golden, "hf_packed_odd")
    test_absmean_golden(golden)

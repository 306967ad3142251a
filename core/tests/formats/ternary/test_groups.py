"""Encodings with a scale for each group of columns, against bytes of independent writers, and their rejected inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats import dense
from bitnet_core.formats.gguf.types import BY_NAME
from bitnet_core.formats.ternary import floats, mlx, ptq1_0, q1_0, q2_0, stq1_0, tq1_0, tq2_0
from bitnet_core.formats.ternary.codes import pack, unpack
from bitnet_core.model.weights import TernaryWeight

Golden = Mapping[str, Any]
ROWS, COLUMNS = 3, 256
STQ1_0 = Path(__file__).parents[1] / "stq1_0.npz"


@pytest.fixture(scope="module")
def forms() -> Iterator[Golden]:
    with np.load(Path(__file__).parents[2] / "golden" / "qwen3" / "formats.npz") as archive:
        yield {name: archive[name] for name in archive.files}


def dequantized(weight: TernaryWeight) -> np.ndarray:
    scales = weight.scales if weight.scale_kind != "row" else weight.scales[:, None]
    if weight.scale_kind == "block":
        scales = np.repeat(scales, weight.block, axis=1)
    return (unpack(weight.codes, weight.columns).astype(np.float32) - 1) * scales


def pack_of(forms: Golden) -> mlx.Pack:
    words = np.ascontiguousarray(forms["mlx_weight"]).view(np.uint8)
    return mlx.Pack(2, words, forms["mlx_scales"].astype(np.float32), forms["mlx_biases"].astype(np.float32))


def test_every_form_of_one_matrix(forms: Golden) -> None:
    found = {
        "q2_0 in 64": q2_0.decode(forms["q2_0_g64_bytes"], ROWS, COLUMNS),
        "q2_0 in 128": q2_0.decode(forms["q2_0_g128_bytes"], ROWS, COLUMNS, 128),
        "ptq1_0": ptq1_0.decode(forms["ptq1_0_bytes"], ROWS, COLUMNS),
        "mlx": mlx.ternary(pack_of(forms)),
        "floats": floats.grouped(ROWS, COLUMNS, lambda part: forms["values"][part]),
    }
    for name, weight in found.items():
        np.testing.assert_array_equal(dequantized(weight), forms["values"], err_msg=name)
        assert (weight.scale_kind, weight.block) == ("block", 128), name


def test_binary_weights_have_no_zeros(forms: Golden) -> None:
    weight = q1_0.decode(forms["q1_0_bytes"], ROWS, COLUMNS)
    np.testing.assert_array_equal(dequantized(weight), forms["q1_0_values"])


@pytest.mark.parametrize(("block", "key"), [(64, "q2_0_g64_bytes"), (128, "q2_0_g128_bytes")])
def test_q2_0_is_written_as_it_was_read(forms: Golden, block: int, key: str) -> None:
    weight = q2_0.decode(forms[key], ROWS, COLUMNS, block)
    assert bytes(q2_0.encode(weight, block)) == bytes(forms[key])


def test_blocks_of_64_that_differ_are_kept_and_do_not_fit_128(forms: Golden) -> None:
    data = forms["q2_0_g64_bytes"].copy().reshape(ROWS, 4, 18)
    data[0, 1, :2] = np.array([0.5], "<f2").view(np.uint8)
    data[0, 1, 2:] = 0b10_01_00_10
    weight = q2_0.decode(data.reshape(-1), ROWS, COLUMNS)
    assert (weight.scale_kind, weight.block) == ("block", 64)
    with pytest.raises(ModelError, match="a scale per 64 columns does not fit blocks of 128"):
        q2_0.encode(weight, 128)


def test_the_code_3_is_counted_and_refused(forms: Golden) -> None:
    live = np.flatnonzero(forms["scales"].reshape(-1))[0]
    data = forms["q2_0_g128_bytes"].copy().reshape(-1, 34)
    data[live, 2:4] = 0xFF
    with pytest.raises(ModelError, match=r"illegal ternary code 3 .* in 8 of 768 weights read"):
        q2_0.decode(data.reshape(-1), ROWS, COLUMNS, 128)
    pack = pack_of(forms)
    words = pack.words.copy()
    words.reshape(-1, 32)[live, 0] = 0xFF
    with pytest.raises(ModelError, match=r"illegal ternary code 3 .* in 4 of 768 weights read"):
        mlx.ternary(mlx.Pack(2, words, pack.scales, pack.biases))


def test_codes_of_a_dead_group_mean_nothing(forms: Golden) -> None:
    data = forms["q2_0_g128_bytes"].copy().reshape(-1, 34)
    data[2, :2], data[2, 2:] = 0, 0xFF
    weight = q2_0.decode(data.reshape(-1), ROWS, COLUMNS, 128)
    assert (dequantized(weight)[1, :128] == 0).all()


def test_general_packs_are_refused_as_ternary_and_read_as_floats(forms: Golden) -> None:
    pack = pack_of(forms)
    with pytest.raises(ModelError, match="affine 2-bit pack"):
        mlx.ternary(mlx.Pack(2, pack.words, pack.scales, pack.biases / 2))
    with pytest.raises(ModelError, match="packed in 4 bits"):
        mlx.ternary(mlx.Pack(4, pack.words, pack.scales, pack.biases))
    codes = np.random.default_rng(0).integers(0, 16, (2, 64))
    words = (codes.reshape(2, -1, 8) << np.arange(0, 32, 4)).sum(axis=2).astype("<u4").view(np.uint8)
    scales, biases = np.array([[0.5, 0.25], [1, 2]], np.float32), np.array([[-4, -2], [0, 1]], np.float32)
    table = mlx.floats(mlx.Pack(4, words, scales, biases))
    expected = codes * np.repeat(scales, 32, axis=1) + np.repeat(biases, 32, axis=1)
    np.testing.assert_array_equal(dense.decode(table.data, "f16", 64), expected)


def test_floats_with_groups_of_several_sizes() -> None:
    draw = np.random.default_rng(1)
    signs = draw.integers(-1, 2, (4, 192)).astype(np.float32)
    by_64 = signs * np.repeat(draw.uniform(0.5, 1, (4, 3)).astype(np.float32), 64, axis=1)
    weight = floats.grouped(4, 192, lambda part: by_64[part])
    assert (weight.scale_kind, weight.block) == ("block", 64)
    by_row = signs[:, :100] * draw.uniform(0.5, 1, (4, 1)).astype(np.float32)
    assert floats.grouped(4, 100, lambda part: by_row[part]).scale_kind == "row"
    assert floats.grouped(4, 192, lambda part: signs[part]).scale_kind == "tensor"
    with pytest.raises(ModelError, match="not ternary in groups"):
        floats.grouped(4, 192, lambda part: draw.standard_normal((4, 192)).astype(np.float32)[part])


def test_stq1_0_golden() -> None:
    """Blocks of Tencent's layout, with the values that independent readers give."""
    with np.load(STQ1_0) as archive:
        raw, expected = archive["raw"], archive["values"]
    weight = stq1_0.decode(raw.reshape(-1), len(raw), 256)
    spread = np.broadcast_to(weight.scales.reshape(-1, 1), (len(raw), 1))
    assert ((unpack(weight.codes, 256).astype(np.float32) - 1) * spread == expected).all()


def test_each_four_of_stq1_0_has_one_zero() -> None:
    blocks = np.random.default_rng(0).integers(0, 256, (64, 42)).astype(np.uint8)
    codes = stq1_0.codes_of(blocks)
    assert codes.max() == 2
    strided = codes.reshape(-1, 4, 4, 16)  # block, chunk, p, g
    assert ((strided == 1).sum(axis=2) == 1).all()


def test_stq1_0_is_written_as_it_was_read() -> None:
    with np.load(STQ1_0) as archive:
        raw = archive["raw"]
    weight = stq1_0.decode(raw.reshape(-1), len(raw), 256)
    again = stq1_0.encode(weight).reshape(raw.shape)
    used = raw[:, 40:].any(axis=1)
    assert used.any()
    assert (again[used] == raw[used]).all()
    assert not again[~used, 40:].any(), "a block of zeros has the scale 0"


@pytest.mark.parametrize("codes", [(0, 2, 2, 0), (1, 1, 0, 2), (1, 1, 1, 1)])
def test_stq1_0_needs_one_zero_in_each_four(codes: tuple[int, ...]) -> None:
    block = np.tile(np.repeat(np.array([1, 0, 2, 2], np.uint8), 16), 4)
    good = TernaryWeight(1, 256, pack(block[None]), np.ones(1, np.float32))
    assert (unpack(stq1_0.decode(stq1_0.encode(good), 1, 256).codes, 256) == block).all()
    block[[3, 19, 35, 51]] = codes
    with pytest.raises(ModelError, match="exactly one zero"):
        stq1_0.encode(TernaryWeight(1, 256, pack(block[None]), np.ones(1, np.float32)))


def test_the_variant_of_stq1_0_with_integer_scales_is_named() -> None:
    blocks = np.zeros((4, 42), np.uint8)
    blocks[:, 40:] = np.array([655], "<i2").view(np.uint8)  # 0.02 * 32768
    with pytest.raises(ModelError, match="variant v2"):
        stq1_0.decode(blocks.reshape(-1), 4, 256)


DECODERS = {
    "Q2_0": q2_0.decode,
    "PQ2_0": lambda data, rows, columns: q2_0.decode(data, rows, columns, block=128),
    "PTQ1_0": ptq1_0.decode,
    "Q1_0": q1_0.decode,
    "STQ1_0": stq1_0.decode,
    "TQ1_0": tq1_0.decode,
    "TQ2_0": tq2_0.decode,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", DECODERS)
def test_arbitrary_bytes_cause_no_warnings(name: str) -> None:
    size = BY_NAME[name].nbytes((64, 256)) or 0
    rng = np.random.default_rng(0)
    for data in (rng.integers(0, 256, size).astype(np.uint8), np.full(size, 0xFF, np.uint8), np.zeros(size, np.uint8)):
        with suppress(ModelError):
            DECODERS[name](data, 64, 256)


def test_mlx_packs_of_one_bit() -> None:
    """Bonsai's 1-bit models: values bias and bias + scale, which are -d and d."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 256, (3, 32)).astype(np.uint8)
    scales = np.array([[0.5, 1.0], [0.25, 0.5], [1.0, 0.0]], np.float32)
    weight = mlx.ternary(mlx.Pack(1, words, scales, -scales / 2))
    bits = np.unpackbits(words, axis=1, bitorder="little").astype(np.float32)
    expected = (bits * np.repeat(scales, 128, axis=1)) - np.repeat(scales, 128, axis=1) / 2
    assert (dequantized(weight) == expected).all()
    with pytest.raises(ModelError, match=r"not -d and d.*GGUF file \(Q1_0\)"):
        mlx.ternary(mlx.Pack(1, words, scales, -scales))

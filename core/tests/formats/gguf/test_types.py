"""The type of a tensor follows from its id and its bytes until the next tensor."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.types import BY_NAME, resolve
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary import tq1_0, tq2_0
from bitnet_core.formats.ternary.codes import unpack
from bitnet_hal.rounding import round_up

Make = Callable[..., object]
ROWS, COLUMNS = 128, 256
N = ROWS * COLUMNS


def padded(nbytes: int) -> int:
    return round_up(nbytes, 32)


@pytest.mark.parametrize(
    ("type_id", "nbytes", "name"),
    [
        (36, N // 4 + 32, "I2_S"),
        (36, N // 32 * 18, "IQ4_NL_4_4"),
        (34, N // 256 * 54, "TQ1_0"),
        (35, N // 256 * 66, "TQ2_0"),
        (38, N // 4 + 32, "TL1"),
        (38, N // 32 * 18, "IQ4_NL_8_8"),
        (39, N // 32 * 17, "MXFP4"),
        (42, N // 64 * 18, "Q2_0"),
        (42, N // 128 * 34, "Q2_0_128"),
        (142, N // 128 * 34, "PQ2_0"),
        (143, N // 128 * 28, "PTQ1_0"),
        (41, N // 128 * 18, "Q1_0"),
        (42, N // 256 * 42, "STQ1_0"),
        (43, N // 256 * 42, "STQ1_0"),
        (134, ROWS * 2 + N // 64 * 13, "IQ1_BN"),
        (135, ROWS * 4 + N // 4, "IQ2_BN"),
        (335, ROWS * 4 + N // 4, "IQ2_BN_R4"),
    ],
)
def test_ids_that_several_types_share(type_id: int, nbytes: int, name: str) -> None:
    kind = resolve(type_id, (ROWS, COLUMNS), padded(nbytes), 32)
    assert not isinstance(kind, str)
    assert (kind.name, kind.nbytes((ROWS, COLUMNS))) == (name, nbytes)


@pytest.mark.parametrize(
    ("type_id", "nbytes", "words"),
    [
        (34, N // 64 * 13, "no row scales"),
        (35, N // 4, "no row scales"),
        (134, N // 64 * 13, "no row scales"),
        (135, N // 4, "no row scales"),
        (32, N // 4, "no row scales"),
        (142, N // 256 * 66, "ik_llama.cpp"),
        (143, N // 256 * 54, "ik_llama.cpp"),
        (36, N // 32 * 18, "removed"),
        (33, N // 32 * 18, "removed"),
        (37, N // 32 * 18, "removed"),
        (37, N, "intermediate results"),
        (26, N * 4, "plain integers"),
        (28, N * 8, "64-bit floats"),
    ],
)
def test_types_that_are_refused_by_name(tmp_path: Path, make_tiny: Make, type_id: int, nbytes: int, words: str) -> None:
    kind = resolve(type_id, (ROWS, COLUMNS), padded(nbytes), 32)
    assert not isinstance(kind, str)
    assert words in kind.refusal
    model = make_tiny()
    name = "blk.0.ffn_down.weight"
    model.add(name, np.zeros(nbytes // 2, "<f2"), "F16", (nbytes // 2,))
    content = model.write(tmp_path / "a.gguf").read_bytes()
    ours = name.encode() + struct.pack("<IQi", 1, nbytes // 2, 1)
    theirs = name.encode() + struct.pack("<IQQi", 2, COLUMNS, ROWS, type_id)
    assert content.count(ours) == 1
    (tmp_path / "a.gguf").write_bytes(content.replace(ours, theirs))
    with pytest.raises(ModelError, match=f"ffn_down.*{kind.name}.*{words}") as caught:
        open_model(tmp_path / "a.gguf")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("type_id", [40, 41, 42, 43, 999])
def test_hy_mt_s_2_bit_form_is_named_by_its_size(type_id: int) -> None:
    kind = resolve(type_id, (64, 1024), 64 * 2 * 130, 32)
    assert not isinstance(kind, str)
    assert kind.name == "Q2_0C"
    assert "SEQ" in kind.refusal
    assert "STQ1_0" in kind.refusal
    assert kind.name not in BY_NAME
    other = resolve(type_id, (64, 1024), 64 * 2 * 130 + 32, 32)
    assert isinstance(other, str) or other.name != "Q2_0C"


@pytest.mark.parametrize(
    ("type_id", "shape", "span", "reason"),
    [
        (13, (1, 256), 99, "needs 176 bytes as Q5_K but has 99"),
        (999, (1, 256), 999, "unknown type id 999"),
        (-1, (1, 256), 999, "unknown type id -1"),
        (0, (2, 256), 2047, "needs 2048 bytes as F32 but has 2047"),
        (36, (128, 256), 8191, "needs 8224 or 18432 bytes as I2_S or IQ4_NL_4_4 but has 8191"),
        (8, (2, 33), 999, "Q8_0 cannot hold"),
        (335, (2, 64), 999, "IQ2_BN_R4 cannot hold"),
    ],
)
def test_tensors_that_do_not_fit(type_id: int, shape: tuple[int, ...], span: int, reason: str) -> None:
    kind = resolve(type_id, shape, span, 32)
    assert isinstance(kind, str)
    assert reason in kind


def test_a_real_tl2_size() -> None:
    assert BY_NAME["TL2"].nbytes((1536, 4096)) == -(-((3840 * 1536 // 3 * 5) // 8 + 256 * 1536 // 4) // 32) * 32 + 32


@pytest.mark.parametrize("dtype", ["TQ1_0", "TQ2_0", "F16", "BF16", "F32"])
def test_one_tensor_of_each_type_gives_the_same_weight(tmp_path: Path, make_tiny: Make, dtype: str) -> None:
    """Store blk.0.ffn_down (128 x 256) again, in another type."""
    model = make_tiny()
    name = "blk.0.ffn_down.weight"
    model.tensors[name][2][-32:-28] = np.array([0.25], "<f4").view(np.uint8)
    weight = open_model(model.write(tmp_path / "a.gguf")).ternary("blk.0.ffn_down")
    if dtype in ("TQ1_0", "TQ2_0"):
        data = (tq1_0 if dtype == "TQ1_0" else tq2_0).encode(weight)
    else:
        floats = (unpack(weight.codes, COLUMNS).astype("<f4") - 1) * np.float32(0.25)
        data = floats.astype({"F16": "<f2"}.get(dtype, "<f4"))
        if dtype == "BF16":
            data = (floats.view("<u4") >> 16).astype("<u2")
    model.add(name, data, dtype, (ROWS, COLUMNS))
    source = open_model(model.write(tmp_path / "b.gguf"))
    again = source.ternary("blk.0.ffn_down")
    assert dtype in source.format
    assert (again.codes == weight.codes).all()
    assert again.scales == weight.scales


def test_floats_that_are_not_ternary_are_refused(tmp_path: Path, make_tiny: Make) -> None:
    model = make_tiny()
    model.add("blk.0.ffn_down.weight", np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype("<f2"), "F16")
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_down\.weight.*not ternary"):
        open_model(model.write(tmp_path / "a.gguf")).ternary("blk.0.ffn_down")


def test_qk256_is_refused_by_its_name() -> None:
    """bitnet-rs writes I2_S's type id over blocks without a scale."""
    reason = resolve(36, (16, 256), 16 * 64, 32)
    assert isinstance(reason, str)
    assert "QK256 layout of bitnet-rs" in reason
    assert not isinstance(resolve(36, (16, 256), 16 * 64 + 32, 32), str)
    assert "QK256" not in str(resolve(36, (16, 256), 16 * 64 - 1, 32))  # cut off

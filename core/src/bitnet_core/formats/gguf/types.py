"""Tensor and value types of GGUF: ids, sizes, and the choice among types that share an id.

The forks of ggml gave the same ids to different types (36, 38, 39, 42, 142 and others); the bytes between a tensor's
offset and the next one tell them apart. Block sizes: ggml-common.h of llama.cpp, and of the forks for their own types.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import prod

from bitnet_hal.rounding import round_up

MAGIC = b"GGUF"
ALIGNMENT = 32
MAX_DIMS = 4
I2_S_TAIL = 32
"""Bytes after the codes of an I2_S or TL1 tensor: the f32 scale and 28 bytes of padding."""


class ValueType(IntEnum):
    """The types of metadata values, by id."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALARS: dict[ValueType, str] = {
    ValueType.UINT8: "<u1",
    ValueType.INT8: "<i1",
    ValueType.UINT16: "<u2",
    ValueType.INT16: "<i2",
    ValueType.UINT32: "<u4",
    ValueType.INT32: "<i4",
    ValueType.FLOAT32: "<f4",
    ValueType.BOOL: "<u1",
    ValueType.UINT64: "<u8",
    ValueType.INT64: "<i8",
    ValueType.FLOAT64: "<f8",
}
"""The numpy dtype of each scalar value type."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """The byte layout of a tensor: rows of blocks after `row_header` bytes, and `tail` bytes at the end.

    flat: blocks run over the whole tensor instead of each row. row_group: rows that are stored together. refusal: the
    reason why a recognised type is not supported ("" if it is).
    """

    id: int
    name: str
    elements: int
    block_bytes: int
    row_header: int = 0
    tail: int = 0
    flat: bool = False
    row_group: int = 1
    refusal: str = ""

    def nbytes(self, shape: tuple[int, ...]) -> int | None:
        """Return the bytes of a tensor of `shape` (last dimension innermost), None if it cannot hold the shape."""
        columns, total = shape[-1], prod(shape)
        rows = total // columns
        if self.name == "TL2":
            return tl2_nbytes(rows, columns)
        if (total if self.flat else columns) % self.elements or rows % self.row_group:
            return None
        return total // self.elements * self.block_bytes + rows * self.row_header + self.tail

    def fills(self, shape: tuple[int, ...], span: int, alignment: int) -> bool:
        """Return whether a tensor of `shape`, padded to the alignment, fills `span` bytes."""
        nbytes = self.nbytes(shape)
        return nbytes is not None and nbytes <= span <= round_up(nbytes, alignment)


def tl2_nbytes(rows: int, columns: int) -> int | None:
    """Return the bytes that the writer of TL2 reserves for a tensor, scale and padding included."""
    if columns < 256:
        return None
    codes = (((columns - 256) * rows) // 3 * 5) // 8 + ((256 * rows) // 2 * 4) // 8
    return round_up(codes, 32) + I2_S_TAIL


_OLD_IK = "written by an ik_llama.cpp build older than October 2024 and carries no row scales; requantize the model"
_REMOVED = "a type that ggml has removed"
_INTERMEDIATE = "a type of intermediate results, which is not supported in a model file"
_INTEGERS = "plain integers, which are not supported in a model file"
_IK = "a type that ik_llama.cpp itself has dropped; requantize the model"

F32 = TensorType(0, "F32", 1, 4)
F16 = TensorType(1, "F16", 1, 2)
BF16 = TensorType(30, "BF16", 1, 2)
Q8_0 = TensorType(8, "Q8_0", 32, 34)
Q6_K = TensorType(14, "Q6_K", 256, 210)
I2_S = TensorType(36, "I2_S", 4, 1, tail=I2_S_TAIL, flat=True)
TQ1_0 = TensorType(34, "TQ1_0", 256, 54)
TQ2_0 = TensorType(35, "TQ2_0", 256, 66)
Q2_0 = TensorType(42, "Q2_0", 64, 18)
Q2_0_128 = TensorType(42, "Q2_0_128", 128, 34)
PQ2_0 = TensorType(142, "PQ2_0", 128, 34)
PTQ1_0 = TensorType(143, "PTQ1_0", 128, 28)
Q1_0 = TensorType(41, "Q1_0", 128, 18)
STQ1_0 = TensorType(43, "STQ1_0", 256, 42)
STQ1_0_EARLY = TensorType(42, "STQ1_0", 256, 42)  # the id of Tencent's first files
TL1 = TensorType(38, "TL1", 4, 1, tail=I2_S_TAIL, flat=True)
TL2 = TensorType(39, "TL2", 1, 1)
IQ1_BN = TensorType(134, "IQ1_BN", 64, 13, row_header=2)
IQ2_BN = TensorType(135, "IQ2_BN", 64, 16, row_header=4)
IQ2_BN_R4 = TensorType(335, "IQ2_BN_R4", 64, 16, row_header=4, row_group=4)
_Q2_0C = TensorType(
    -1,
    "Q2_0C",
    512,
    130,
    refusal="the 2-bit form of Tencent's Hy-MT (SEQ), whose four levels -1.5, -0.5, 0.5 and 1.5 are not ternary; "
    "get the model's 1.25-bit file (STQ1_0)",
)
"""llama.cpp pull request 19357, not merged. Its id is not settled; its size is that of no other type but IQ2_TN."""

_ALL = (
    F32, F16, BF16, Q8_0, Q6_K, I2_S, TQ1_0, TQ2_0, Q2_0, Q2_0_128, PQ2_0, PTQ1_0,
    Q1_0, STQ1_0_EARLY, STQ1_0, TL1, TL2, IQ1_BN, IQ2_BN, IQ2_BN_R4,
    # more bits per weight: for embeddings and heads
    TensorType(2, "Q4_0", 32, 18),
    TensorType(3, "Q4_1", 32, 20),
    TensorType(6, "Q5_0", 32, 22),
    TensorType(7, "Q5_1", 32, 24),
    TensorType(10, "Q2_K", 256, 84),
    TensorType(11, "Q3_K", 256, 110),
    TensorType(12, "Q4_K", 256, 144),
    TensorType(13, "Q5_K", 256, 176),
    TensorType(16, "IQ2_XXS", 256, 66),
    TensorType(17, "IQ2_XS", 256, 74),
    TensorType(18, "IQ3_XXS", 256, 98),
    TensorType(19, "IQ1_S", 256, 50),
    TensorType(20, "IQ4_NL", 32, 18),
    TensorType(21, "IQ3_S", 256, 110),
    TensorType(22, "IQ2_S", 256, 82),
    TensorType(23, "IQ4_XS", 256, 136),
    TensorType(29, "IQ1_M", 256, 56),
    TensorType(39, "MXFP4", 32, 17),
    TensorType(40, "NVFP4", 64, 36),
    # of other programs, and of computations
    TensorType(9, "Q8_1", 32, 36, refusal=_INTERMEDIATE),
    TensorType(15, "Q8_K", 256, 292, refusal=_INTERMEDIATE),
    TensorType(24, "I8", 1, 1, refusal=_INTEGERS),
    TensorType(25, "I16", 1, 2, refusal=_INTEGERS),
    TensorType(26, "I32", 1, 4, refusal=_INTEGERS),
    TensorType(27, "I64", 1, 8, refusal=_INTEGERS),
    TensorType(28, "F64", 1, 8, refusal="64-bit floats, which no model needs; convert the model again"),
    TensorType(33, "Q4_0_8_8", 32, 18, refusal=_REMOVED),
    TensorType(37, "IQ4_NL_4_8", 32, 18, refusal=_REMOVED),
    TensorType(37, "I8_S", 1, 1, refusal=_INTERMEDIATE),
    TensorType(34, "IQ1_BN", 64, 13, refusal=_OLD_IK),
    TensorType(35, "IQ2_BN", 64, 16, refusal=_OLD_IK),
    TensorType(134, "IQ1_BN", 64, 13, refusal=_OLD_IK),
    TensorType(135, "IQ2_BN", 64, 16, refusal=_OLD_IK),
    TensorType(31, "IQ1_BN", 64, 13, refusal=_OLD_IK),
    TensorType(32, "IQ2_BN", 64, 16, refusal=_OLD_IK),
    TensorType(31, "Q4_0_4_4", 32, 18, refusal=_REMOVED),
    TensorType(32, "Q4_0_4_8", 32, 18, refusal=_REMOVED),
    TensorType(36, "IQ4_NL_4_4", 32, 18, refusal=_REMOVED),
    TensorType(38, "IQ4_NL_8_8", 32, 18, refusal=_REMOVED),
    TensorType(142, "IQ2_TN", 256, 64, row_header=4, refusal=_IK),
    TensorType(142, "IQ2_TN", 256, 66, refusal=_IK),
    TensorType(143, "IQ1_TN", 256, 52, row_header=2, refusal=_IK),
    TensorType(143, "IQ1_TN", 256, 54, refusal=_IK),
)  # fmt: skip

BY_NAME: dict[str, TensorType] = {kind.name: kind for kind in _ALL if not kind.refusal}
"""The supported types, by name."""


def candidates(type_id: int) -> tuple[TensorType, ...]:
    """Return every known type with this id."""
    return tuple(kind for kind in _ALL if kind.id == type_id)


def most_bytes(type_id: int, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor of `shape` in the largest known type of this id; 0 if none holds it."""
    return max((kind.nbytes(shape) or 0 for kind in candidates(type_id)), default=0)


def resolve(type_id: int, shape: tuple[int, ...], span: int, alignment: int) -> TensorType | str:
    """Return the type of a tensor of `shape` whose bytes end at most `span` bytes after its offset.

    A type matches exactly if its bytes, padded to the alignment, fill the span. An id with several meanings needs an
    exact match. If no type fits, the result is the reason, a string.
    """
    known = candidates(type_id)
    if not known:
        return _Q2_0C if _Q2_0C.fills(shape, span, alignment) else f"has the unknown type id {type_id}"
    sized = [(kind, nbytes) for kind in known if (nbytes := kind.nbytes(shape)) is not None]
    exact = [kind for kind in (*known, _Q2_0C) if kind.fills(shape, span, alignment)]
    if exact:
        return exact[0]
    names = " or ".join(dict.fromkeys(kind.name for kind in known))
    if not sized:
        return f"has a shape {list(shape)} that {names} cannot hold"
    if len(known) == 1 and sized[0][1] <= span:
        return sized[0][0]
    if type_id == I2_S.id and span >= prod(shape) // 4:
        return (
            "is I2_S without its scale, the QK256 layout of bitnet-rs, which is not supported: read as I2_S it "
            "would give other weights. Convert the original model"
        )
    sizes = " or ".join(str(nbytes) for _, nbytes in sized)
    return f"needs {sizes} bytes as {names} but has {span} bytes until the next tensor or the end of the file"

"""The conventions of all kernels, as `bitnet kernels all` and the page of kernels show them."""

from __future__ import annotations

NAMES: dict[str, str] = {
    "T": "rows of this step; one row is one token of one sequence",
    "L": "rows whose logits are wanted, the last of a prompt for example",
    "H": "hidden width: elements of a row between two layers",
    "K": "columns of a matrix, which are the inputs of its product",
    "N": "rows of a matrix, which are the outputs of its product",
    "F": "width of the feed-forward part",
    "V": "vocabulary: tokens that have a logit",
    "D": "elements of an attention head (head_dim)",
    "t": "a row of the step, 0..T-1",
    "l": "a row whose logits are wanted, 0..L-1",
    "r": "the row of the step that belongs to l, index[l]",
    "n": "a row of a matrix, 0..N-1",
    "k": "a column of a matrix, 0..K-1; k[p] is the key of position p",
    "v": "v[p] is the value of position p",
    "h": "a head of a row",
    "p": "a position of a sequence",
    "b": "a block of columns that share a weight scale",
    "c": "a channel of a convolution",
    "g": "a group of 64 rows of the head",
    "i": "an element, or one of the choices of a row",
    "j": "an element, or a tap of a convolution",
    "z": "the argument of a function",
    "ADD": "1: the product is added to the output, 0: it replaces the output",
    "NORM": "1: rows are normed (RMS norm) before they are quantized, 0: they are not",
    "ACT": "the activation of a gate, 0: squared ReLU, 1: SiLU, 2: sigmoid",
    "QKNORM": "1: each query and key head is normed (RMS norm) before its rotation, 0: it is not",
    "INTERLEAVED": "the pairs that RoPE rotates, 1: neighbours 2j and 2j + 1, 0: j and j + D/2",
    "MASK": "1: only tokens that a mask allows can be chosen, 0: all tokens can",
    "INVERSE": "1: the inverse rotation, 0: the rotation",
    "DTYPE": "type of a dense table, 0: f32, 1: f16, 2: bf16, 3: q8_0, 4: q6_K",
    "KV": "type of the caches, 0: f32, 1: f16, 2: int8",
    "BLOCK": "columns that share a weight scale, 0: the whole row",
    "ABLOCK": "columns that share an activation scale, 0: the whole row",
    "TILE_N": "outputs (or heads, or channels) that one workgroup computes",
    "TILE_T": "rows that one workgroup computes",
    "SPLITS": "workgroups that share the columns, positions or logits of one output",
    "MEMBERS": "workgroups of a launch that wait for each other",
    "NaN": "a value that is not a number",
    "Inf": "a value beyond the range of f32",
}
"""Name in the kernels' meanings, shapes and constants -> its explanation."""

TEXT = """\
`(+)=` is `+=` where ADD is 1 and `=` where it is 0. `[a | b]` is a row that holds a, then b. `x[t, :]` is the whole
row t. A name that a kernel's own tables or formulas define has that meaning there.

**The step buffer**, `step`, is i32[T, 4]: token, position, slot, sequence of each row. Position -1 marks an unused
row: kernels write nothing to caches for it. A slot is block * 64 + offset in the paged cache. **tables** names the
blocks of each sequence.

**Caches** hold one row per slot and key/value head: byte address of (slot, head) = ((slot / 64 * n_kv_heads + head) *
64 + slot % 64) * row_bytes. KV = 0: f32[D]; KV = 1: f16[D]; KV = 2: one f32 scale, then i8[D] (value = code * scale,
scale = absmax / 127, 0 for an all-zero row), row_bytes rounded up to 4 (the rest 0).

**Quantized activations** are q i8[T, stride], scale f32[T], qsum i32[T], after BitNet b1.58 (absmax per token): m =
max(max|y|, 1e-5), q = clip(round_half_even(y * (127 / m)), -128, 127), scale = m / 127, qsum = sum of q; columns
width..stride-1 of q are 0. ABLOCK 32: the same for each block of 32 columns, the floor being 1e-20 (llama.cpp's
numerics for weight-only models): scale f32[T, stride / 32], qsum i32[T, stride / 32]; blocks past `width` are those
of zeros. ABLOCK 128: m is that of 128 columns; scale and qsum stay those of 32 (four equal scales, four sums), so
that only the kernels that quantize distinguish it from ABLOCK 32. A row that holds a NaN or Inf, or whose sum of
squares overflows, gets scale = NaN (in all its blocks), q = 0, qsum = 0, so that it cannot pass for an answer.

**Ternary weights** are I2_S 128-blocks: byte i of a 32-byte block holds columns i (bits 7-6), 32+i (5-4), 64+i (3-2),
96+i (1-0); code 0, 1, 2 means -1, 0, +1. `width` is K rounded up to 128; any code may fill the rest, where q is 0.

**Block scales**: if BLOCK is not 0, wscale is f32[N, ceil(width / BLOCK)], a scale for BLOCK columns of a row.

**States** of delta nets are f32, for each sequence one of a fixed size, which position 0 begins as zeros. A
sequence's rows in a step stand next to each other at rising positions, and go on from the state that the last step
left.

**Masks** are i32[L, ceil(V / 32)]: bit i % 32 of word i / 32 is 1 if token i may be chosen.

**Dense tables**: q8_0 has blocks of 32 elements (f16 scale, i8[32]), q6_K blocks of 256 elements in 210 bytes, both
as GGUF defines them.

Sums of a ternary product are exact integers, so all devices agree; everything else is f32."""

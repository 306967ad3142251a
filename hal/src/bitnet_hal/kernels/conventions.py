"""The notation and memory layouts that all kernels share, as `bitnet kernels all` and docs/backends/kernels.md show
them."""

from __future__ import annotations

NAMES: dict[str, str] = {
    "T": "rows of this step; one row is one token of one sequence",
    "L": "rows whose logits the step needs, such as the last row of a prompt",
    "H": "hidden width: elements of a row between two layers",
    "K": "columns of a matrix, which are the inputs of its product",
    "N": "rows of a matrix, which are the outputs of its product",
    "F": "width of the feed-forward network",
    "V": "vocabulary: tokens that have a logit",
    "D": "elements of an attention head (head_dim)",
    "t": "a row of the step, 0..T-1",
    "l": "one of these rows, 0..L-1",
    "r": "the row of the step whose logits are row l, index[l]",
    "n": "a row of a matrix, 0..N-1",
    "k": "a column of a matrix, 0..K-1; k[p] is the key of position p",
    "v": "v[p] is the value of position p",
    "h": "a head of a row",
    "p": "a position of a sequence",
    "b": "a group of BLOCK columns that share a weight scale",
    "c": "a channel of a convolution",
    "g": "a group of 64 rows of the head",
    "i": "an element, or one of the choices of a row",
    "j": "an element, or a tap of a convolution",
    "z": "the argument of a function such as act",
    "ADD": "1: the product is added to the output, 0: it replaces the output",
    "NORM": "1: RMS norm before quantization, 0: no norm",
    "ACT": "the activation of a gate, 0: squared ReLU, 1: SiLU, 2: sigmoid",
    "KEEP": "1: the row is written in f32 beside its quantized rotation, 0: it is not",
    "QKNORM": "1: RMS norm of each query and key head before RoPE, 0: no norm",
    "INTERLEAVED": "the pairs that RoPE rotates, 1: neighbours 2j and 2j + 1, 0: j and j + D/2",
    "MASK": "1: only tokens that the mask allows can be chosen, 0: any token",
    "INVERSE": "1: the inverse rotation, 0: the rotation",
    "DTYPE": "type of a dense table, 0: f32, 1: f16, 2: bf16, 3: q8_0, 4: q6_K",
    "KV": "type of the caches, 0: f32, 1: f16, 2: int8",
    "BLOCK": "group size of the weights: columns that share a scale, 0: one scale for each row",
    "Q2_0": "a type of tensors in GGUF files: blocks of 64 or 128 columns, each with a scale",
    "ABLOCK": "group size of the activations: columns that share a scale, 0: one scale for each row",
    "TILE_N": "outputs (or heads, channels, logits or rotated blocks) that one workgroup computes",
    "TILE_T": "rows that one workgroup computes",
    "SPLITS": "workgroups that share the columns, positions or logits of one output, and combine their results",
    "MEMBERS": "workgroups of a launch that synchronize with each other",
    "NaN": "a value that is not a number",
    "Inf": "a value beyond the range of f32",
}
"""Explanation of each name in the kernels' meanings, shapes and constants."""

TEXT = """\
`(+)=` is `+=` if ADD is 1 and `=` if it is 0. `[a | b]` is a row that holds a, then b. `x[t, :]` is the whole row t.
Of a row y, `max|y|` is the largest absolute value, `|y|` the Euclidean norm and `mean(y^2)` the mean over its columns;
a head is normed like a row. Indexes are integers, and their division rounds down; ceil and ceil_div round up. A name
that a kernel's own tables or formulas define has that meaning there.

**Bindings** are C-contiguous and little-endian. Access `r` is read only; `w` is written whole; `rw` also covers outputs
of which only a part is written: all other elements keep their bits. A `*` in a shape is a size that the kernel does not
depend on. Values of each constant are fixed at compilation; the device chooses those marked "tuning"
(`Device.tuning`). Workgroups that exchange results, as with SPLITS above 1, can do so in a workspace
(`Tuning.workspace`), which is bound after the bindings of the table.

**The step buffer**, `step`, is i32[T, 4]; the columns of row t are token[t], position[t], slot[t] and sequence[t].
`sequence` is a row of `tables` and of the states. Position -1 marks an unused row, for which kernels write nothing to
the caches. A slot is block * 64 + offset in the paged cache, -1 if the row has none. **tables** is the block table: the
cache blocks of each sequence in order, so that position p has slot tables[sequence, p / 64] * 64 + p % 64.

**Caches** hold one row per slot and key/value head: byte address of (slot, head) = ((slot / 64 * n_kv_heads + head) *
64 + slot % 64) * row_bytes. KV = 0: f32[D]; KV = 1: f16[D], rounded to nearest even; KV = 2: one f32 scale = max|x| /
127, then i8[D] = round_half_even(x * (127 / max|x|)), all 0 for an all-zero row; row_bytes is rounded up to 4, and the
rest is 0. The value of a code is code * scale.

**Norms** are NaN in the whole row if its sum of squares is not finite in f32.

**Quantized activations** are q i8[T, stride], scale f32[T], qsum i32[T], after BitNet b1.58 (absmax per token): m =
max(max|y|, 1e-5), q = clip(round_half_even(y * (127 / m)), -128, 127), scale = m / 127, qsum = sum of q; columns
width..stride-1 of q are 0. ABLOCK 32: the same for each group of 32 columns, with a floor of 1e-20 instead of 1e-5
(llama.cpp's numerics for weight-only models): scale f32[T, stride / 32], qsum i32[T, stride / 32]; groups past `width`
are quantized as zeros. ABLOCK 128: m is computed over 128 columns, but scale and qsum keep one entry for each 32
columns (four equal scales, four sums), so that only the kernels that quantize distinguish it from ABLOCK 32. A row of y
that holds a NaN or Inf gets scale = NaN (in all its groups), q = 0 and qsum = 0: every product with it is NaN.

**Ternary weights** are I2_S blocks of 128 columns in 32 bytes: block j of a row holds columns 128 j..128 j + 127, and
byte i of it columns 128 j + i (bits 7-6), 128 j + 32 + i (bits 5-4), 128 j + 64 + i (bits 3-2) and 128 j + 96 + i (bits
1-0). code[n, k] is 0, 1 or 2 and stands for -1, 0 or +1. `width` is K rounded up to 128; padding columns may hold any
code, since q is 0 there.

**Group scales**: the constant BLOCK is the group size of the weights, ABLOCK that of the activations. If BLOCK is not
0, wscale is f32[N, ceil(width / BLOCK)]: one scale for each BLOCK columns of a row.

**States** of delta nets are f32 and of a fixed size for each sequence; a row at position 0 starts from zeros. The rows
of a sequence are consecutive in a step, in ascending positions, and continue from the state of the previous step.

**Masks** are i32[L, ceil(V / 32)]: bit i % 32 of word i / 32 is 1 if token i is allowed.

**Dense tables** have rows without padding, of type DTYPE: q8_0 has blocks of 32 elements (f16 scale, i8[32]), q6_K
blocks of 256 elements in 210 bytes, both as GGUF defines them. A row has a whole number of blocks.

Sums of a ternary product are exact integers, so that all devices agree; everything else is f32.

**Batch invariance**: in launches of up to `DeviceInfo.batch_invariant_rows` rows, the order of every f32 sum over a row
(norms, softmax, head, delta rule, scales) depends on that row alone: not on the number of rows, their contents, the
row's place, or the places at which a prompt is cut into steps. All these launches use the tuning of the declared number
of rows; with the feature "invariant-tunings" the device chooses them by the rows of each launch, and with
"batch-invariant" each may have its own. The option `deterministic` relies on it. A device should declare 8 rows or more
for its base kernels; one that declares none computes one row a step with that option."""

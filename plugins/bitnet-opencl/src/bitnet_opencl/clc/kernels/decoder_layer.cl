// A decoder layer for one row: norm_matmul (q, k and v), rope_attention, norm_matmul (added to x), norm_matmul_glu,
// norm_matmul (added to x), by MEMBERS groups with four barriers among them. Each group has its rows of every matrix,
// and prefetches the weights of its next product into registers while it waits. Data that other groups wrote before a
// barrier is read by instructions after it.
// x f32[HIDDEN]; qkv f32[QKV]; step i32[4]; heads f32[QUERIES]; m f32[FFN]; rope, tables and caches as in
// rope_attention.cl; gamma_*, w_*, s_*: gamma, w and wscale for qkv, for the heads (o), for gate and up, and for m
// (down).
#include "layer_operands.clh"
#define MOST_ROWS (2 * UP_ROWS)
#include "glu.clh"
#include "layer_attention.clh"
#include "meeting.clh"
#include "norm_row.clh"

// The rows of `outs` of a group: first_of .. first_of + rows_of - 1, SETS at a time.
#define SHARE_OF(outs) CEIL_DIV(outs, MEMBERS)
INLINE uint first_of(uint outs) { return get_group_id(0) * SHARE_OF(outs); }
INLINE uint rows_of(uint outs) { return min(SHARE_OF(outs), outs - min(first_of(outs), outs)); }

// Loads rows start + r * SETS + set of this group, r < rows, of each of `matrices` matrices, and their scales.
INLINE void load_weights(uint4 *word, float *factor, __global const uint4 *w, __global const float *wscale, uint outs,
                         uint matrices, uint rows, uint width, uint start) {
    UNROLL
    for (uint j = 0; j < matrices * rows; ++j) {
        const uint r = start + j % rows * SETS + get_local_id(0) / LANES, n = j / rows * outs + first_of(outs) + r;
        load_words(word + j * STEPS_OF(width), factor + j * FACTORS_OF(width), w, wscale, n, width, r < rows_of(outs));
    }
}

// The lane's first row of x before the product.
INLINE float old_x(__global const float *x) {
    const uint set = get_local_id(0) / LANES;
    float old = 0;
    if (set < rows_of(HIDDEN)) old = load_now(x + first_of(HIDDEN) + set);
    return old;
}

// Adds to x the product of the codes with a matrix whose first rows are in `word`.
INLINE void add_to_x(__global float *x, float old, uint4 *word, float *factor, __global const uint4 *w,
                     __global const float *wscale, uint width, quantized row, __local const uint4 *codes,
                     __local float *scratch) {
    for (uint start = 0; start < SHARE_OF(HIDDEN); start += SETS) {
        const uint r = start + get_local_id(0) / LANES, n = first_of(HIDDEN) + r;
        const bool own = r < rows_of(HIDDEN);
        if (start > 0) {
            load_weights(word, factor, w, wscale, HIDDEN, 1, 1, width, start);
            old = 0;
            if (own) old = load_now(x + n);
        }
        float value;
        multiply(&value, word, factor, 1, width, row, codes, scratch);
        if (own && get_local_id(0) % LANES == 0) x[n] = old + value;
    }
}

INLINE quantized unless(quantized row, __local const uint *lost) {
    if (*lost) row.scale = NAN;
    return row;
}

KERNEL decoder_layer(ARGUMENTS) {
    PARAMETERS
    LAYER_OPERANDS
    __local uint4 codes[LARGER(CODES_OF(MOST_WIDTH), LOCAL_QUADS)];
    __local float4 *shared = (__local float4 *)codes;  // attention uses this memory between products
    __local float fresh[(HEADS + 2) * HEAD_DIM] __attribute__((aligned(32)));
    __local float scratch[3 * EXCHANGED], inverses[HEADS + 1];
    __local uint arrived, lost;
    const uint lid = get_local_id(0), lane = lid % LANES;
    if (lid == 0) lost = *(volatile __global uint *)(workspace + LOST);
    barrier(CLK_LOCAL_MEM_FENCE);
    float4 held[ROW_QUADS(MOST_WIDTH)], gains[ROW_QUADS(MOST_WIDTH)];
    quantized row;
    {
        uint4 word[STEPS_OF(WIDE)];
        float factor[FACTORS_OF(WIDE)];
        load_row(gains, gamma_qkv, HIDDEN, WIDE);
        load_weights(word, factor, w_qkv, s_qkv, QKV, 1, 1, WIDE, 0);
        load_row(held, x, HIDDEN, WIDE);
        row = unless(norm_row(held, gains, true, HIDDEN, WIDE, eps, (__local uint *)codes, scratch), &lost);
        for (uint start = 0; start < SHARE_OF(QKV); start += SETS) {
            if (start > 0) load_weights(word, factor, w_qkv, s_qkv, QKV, 1, 1, WIDE, start);
            float value;
            multiply(&value, word, factor, 1, WIDE, row, codes, scratch);
            const uint r = start + lid / LANES;
            if (r < rows_of(QKV) && lane == 0) qkv[first_of(QKV) + r] = value;
        }
    }
    arrive(workspace, 0);
    const attention_unit unit = unit_at(get_group_id(0), step, 1);
    await(workspace, 0, &lost);
    attend_rows(unit, qkv, step, rope, q_gamma, k_gamma, k_cache, v_cache, tables, heads, 1, row_bytes, max_blocks, scale, eps,
                workspace + 16 * LINE, shared, fresh, inverses, scratch, &arrived);
    arrive(workspace, 1);
    {
        uint4 word[STEPS_OF(WIDE_O)];
        float factor[FACTORS_OF(WIDE_O)];
        if (NORM) load_row(gains, gamma_o, QUERIES, WIDE_O);
        load_weights(word, factor, w_o, s_o, HIDDEN, 1, 1, WIDE_O, 0);
        const float old = old_x(x);
        await(workspace, 1, &lost);
        load_row(held, heads, QUERIES, WIDE_O);
        row = unless(norm_row(held, gains, NORM, QUERIES, WIDE_O, eps, (__local uint *)codes, scratch), &lost);
        add_to_x(x, old, word, factor, w_o, s_o, WIDE_O, row, codes, scratch);
    }
    arrive(workspace, 2);
    {
        uint4 word[MOST_ROWS * STEPS_OF(WIDE)];
        float factor[MOST_ROWS * FACTORS_OF(WIDE)];
        load_row(gains, gamma_up, HIDDEN, WIDE);
        load_weights(word, factor, w_up, s_up, FFN, 2, UP_ROWS, WIDE, 0);
        await(workspace, 2, &lost);
        load_row(held, x, HIDDEN, WIDE);
        row = unless(norm_row(held, gains, true, HIDDEN, WIDE, eps, (__local uint *)codes, scratch), &lost);
        for (uint start = 0; start < SHARE_OF(FFN); start += SETS * UP_ROWS) {
            if (start > 0) load_weights(word, factor, w_up, s_up, FFN, 2, UP_ROWS, WIDE, start);
            float values[MOST_ROWS];
            multiply(values, word, factor, MOST_ROWS, WIDE, row, codes, scratch);
            UNROLL
            for (uint j = 0; j < UP_ROWS; ++j) {
                const uint r = start + j * SETS + lid / LANES;
                if (r < rows_of(FFN) && lane == 0) m[first_of(FFN) + r] = gated(values[j], values[UP_ROWS + j]);
            }
        }
    }
    arrive(workspace, 3);
    {
        uint4 word[STEPS_OF(WIDE_M)];
        float factor[FACTORS_OF(WIDE_M)];
        if (NORM) load_row(gains, gamma_down, FFN, WIDE_M);
        load_weights(word, factor, w_down, s_down, HIDDEN, 1, 1, WIDE_M, 0);
        const float old = old_x(x);
        await(workspace, 3, &lost);
        load_row(held, m, FFN, WIDE_M);
        row = unless(norm_row(held, gains, NORM, FFN, WIDE_M, eps, (__local uint *)codes, scratch), &lost);
        add_to_x(x, old, word, factor, w_down, s_down, WIDE_M, row, codes, scratch);
    }
}

// A decoder layer for a batch's rows of different sequences: the launches of decoder_layer.cl, with products on tensor
// cores (layer_products.clh), by MEMBERS groups with eight barriers among them. Some groups norm and quantize a row each,
// whose codes all groups then multiply with their tiles of 16 rows of a matrix, TILE_T rows at a time. Each group loads its
// first weights of the next product while it waits, and its next ones while it multiplies.
// x f32[rows, HIDDEN]; qkv f32[rows, QKV]; heads f32[rows, QUERIES]; m f32[rows, FFN]; all else as in decoder_layer.cl.
#include "layer_operands.clh"
#define AREA __global
#define CODES_FENCE (CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
// Where layer_products.clh expects four codes from a column on, and a scale of 32 columns.
#define EIGHT_AT(row) ((row) / 8 * 128 + (row) % 8 * 16)
#define PAIR_AT(column, plane) (((column) / 256 * 4 + (plane)) * 4 * PLANE_QUADS)
#if BLOCK
#define CODE_AT(row, column, width) \
    (EIGHT_AT(row) + PAIR_AT(column, (column) / 64 % 4) + \
     ((column) / 16 % 2 + (column) / 8 % 2 * 2) * 4 + (column) / 32 % 2 * 2 + (column) / 4 % 2)
#else
#define CODE_AT(row, column, width) \
    (EIGHT_AT(row) + PAIR_AT(column, (column) / 32 % 4) + ((column) / 128 % 2 * 2 + (column) / 16 % 2) * 4 + (column) / 4 % 4)
#endif
#define SCALE_AT(row, group, width) (((group) / 4 * ALL_ROWS + (row)) * 4 + (group) % 4)
#define MEETINGS 8
#define WARPS (GROUP / 32)
#define QUADS CEIL_DIV(MOST_WIDTH / 4, GROUP)
#include "glu.clh"
#include "layer_products.clh"
#include "norm_rows.clh"
#undef QUADS
#include "layer_attention.clh"
#include "meeting.clh"

// Norms rows of x, one for each group, and quantizes them.
INLINE void quantize_rows(quantized_rows q, __global const float *x, __global const float *gamma, uint columns, uint width,
                          bool norm, uint rows, float eps, __local float *found, __local float *scratch) {
    for (uint row = get_group_id(0); row < rows; row += MEMBERS) {
        barrier(CLK_LOCAL_MEM_FENCE);
        norm_rows(x + (ulong)row * columns, gamma, 1, columns, width, norm, WARPS, eps, q.codes + EIGHT_AT(row),
                  q.scale + row * (ABLOCK ? 4 : 1), q.qsum + row * (ABLOCK ? 4 : 1), found, scratch);
    }
}

// Declares shape, words and factors of a product, and loads the first weights.
#define PRODUCT(NAME, COLUMNS_, OUTS, STORED, SPLIT_N_)                                                            \
    const product_shape shape_##NAME = {COLUMNS_, PADDED(COLUMNS_), OUTS, STORED, SPLIT_N_,                        \
                                        PAIRS_OF(PADDED(COLUMNS_), SPLIT_N_)};                                     \
    uint4 words[2 * PAIRS_OF(PADDED(COLUMNS_), SPLIT_N_)], next_words[2 * PAIRS_OF(PADDED(COLUMNS_), SPLIT_N_)];   \
    factor_of factors[4 * PAIRS_OF(PADDED(COLUMNS_), SPLIT_N_)], next_factors[4 * PAIRS_OF(PADDED(COLUMNS_), SPLIT_N_)]; \
    load_part(words, factors, shape_##NAME, w_##NAME, s_##NAME, get_group_id(0) * outs_of(shape_##NAME), 0);
// Quantizes the rows of X, waits for all of them, and multiplies them.
#define MULTIPLY(NAME, X, NORMED, Y, ADDED, MEETING)                                                               \
    quantize_rows(q, X, gamma_##NAME, shape_##NAME.columns, shape_##NAME.width, NORMED, rows, eps, found, scratch); \
    arrive(workspace, MEETING);                                                                                    \
    await(workspace, MEETING, &lost);                                                                              \
    multiply_rows(words, factors, next_words, next_factors, shape_##NAME, q, w_##NAME, s_##NAME, Y, ADDED, rows,   \
                  parts, lost);

KERNEL decoder_layer_batch(ARGUMENTS) {
    PARAMETERS
    LAYER_OPERANDS
    __local float4 shared[LARGER(CEIL_DIV(PART_WORDS, 4), LOCAL_QUADS)];  // parts of sums; also for attention
    __local sum_of *parts = (__local sum_of *)shared;
    __local float fresh[(HEADS + 2) * HEAD_DIM] __attribute__((aligned(32)));
    __local float found[4 * WARPS], scratch[3 * EXCHANGED], inverses[HEADS + 1];
    __local uint arrived, lost;
    quantized_rows q;
    q.codes = workspace + CODES_AT;
    q.scale = (__global float *)(q.codes + ALL_ROWS * CEIL_DIV(MOST_WIDTH, 256) * 64);
    q.qsum = (__global int *)(q.scale + SCALES_OF(MOST_WIDTH));
    if (get_local_id(0) == 0) lost = *(volatile __global uint *)(workspace + LOST);
    barrier(CLK_LOCAL_MEM_FENCE);
    {
        PRODUCT(qkv, HIDDEN, QKV, 1, SPLIT_QKV)
        MULTIPLY(qkv, x, true, qkv, false, 0)
    }
    arrive(workspace, 1);
    const attention_unit unit = unit_at(get_group_id(0), step, rows);
    await(workspace, 1, &lost);
    attend_rows(unit, qkv, step, rope, q_gamma, k_gamma, k_cache, v_cache, tables, heads, rows, row_bytes, max_blocks,
                scale, eps, workspace + 16 * LINE, shared, fresh, inverses, scratch, &arrived);
    arrive(workspace, 2);
    {
        PRODUCT(o, QUERIES, HIDDEN, 1, SPLIT_X)
        await(workspace, 2, &lost);
        MULTIPLY(o, heads, NORM, x, true, 3)
    }
    arrive(workspace, 4);
    {
        PRODUCT(up, HIDDEN, FFN, 2, SPLIT_UP)
        await(workspace, 4, &lost);
        MULTIPLY(up, x, true, m, false, 5)
    }
    arrive(workspace, 6);
    {
        PRODUCT(down, FFN, HIDDEN, 1, SPLIT_X)
        await(workspace, 6, &lost);
        MULTIPLY(down, m, NORM, x, true, 7)
    }
}

// A decoder layer for two to four rows of different sequences, BLOCK 0: the launches of decoder_layer.cl, with products on
// tensor cores (few.clh), by MEMBERS groups with four barriers among them. Each group norms all rows, has some tiles of 16
// rows of every matrix, and loads its first weights of the next product while it waits.
// x f32[rows, HIDDEN]; qkv f32[rows, QKV]; heads f32[rows, QUERIES]; m f32[rows, FFN]; all else as in decoder_layer.cl.
#include "layer_operands.clh"
#define TILE_T 8
#define AREA __local
#define WARPS (GROUP / 32)
#define NARROW 4096  // columns up to which all rows are normed at the same time
#define ROW_WARPS_OF(width) ((width) <= NARROW ? WARPS / ROOM : WARPS / CEIL_DIV(ROOM, 2))
#define QUADS_OF(width) CEIL_DIV((width) / 4, 32 * ROW_WARPS_OF(width))
#define QUADS LARGER(LARGER(QUADS_OF(WIDE), QUADS_OF(WIDE_O)), QUADS_OF(WIDE_M))
#define CODES_QUADS CEIL_DIV(ROOM * ROW_PITCH(MOST_WIDTH), 2)
#define PART_WORDS (WARPS * ROOM * 16)
// Pairs of blocks of a part of the columns, and those that a warp holds in registers.
#define SHARE_OF(width, split_n) CEIL_DIV(CEIL_DIV((width) / 128, 2), WARPS / (split_n))
#define PAIRS_OF(width, split_n) (SHARE_OF(width, split_n) < MOST_PAIRS ? SHARE_OF(width, split_n) : MOST_PAIRS)
#include "norm_rows.clh"
#include "few.clh"
#include "glu.clh"
#include "layer_attention.clh"
#include "meeting.clh"

// A product: the matrix has outs rows (or twice as many: gate and up, if `stored` is 2) of `width` columns. The warps form
// split_n tiles of 16 of a group's rows, by parts of the columns, `pairs` pairs of blocks at a time.
typedef struct {
    uint columns, width, outs, stored, split_n, pairs;
} product_shape;

INLINE uint outs_of(product_shape p) { return p.split_n * 16 / p.stored; }  // outputs of a group at a time

// Loads the weights of outputs n0 .. of a warp, from pair `step` of its part on.
INLINE void load_part(uint2 *words, float2 *factors, product_shape p, __global const uint4 *w,
                      __global const float *wscale, uint n0, uint step) {
    const uint warp = get_local_id(0) / 32, g = get_local_id(0) % 32 / 4, split_k = WARPS / p.split_n;
    const uint blocks = p.width / 128, share = 2 * SHARE_OF(p.width, p.split_n);
    const uint tile = warp / split_k, begin = warp % split_k * share, end = min(begin + share, blocks);
    UNROLL
    for (uint i = 0; i < p.pairs; ++i)
        UNROLL
        for (uint r = 0; r < 2; ++r) {
            const uint n = p.stored == 2 ? r * p.outs + min(n0 + 8 * tile + g, p.outs - 1)
                                         : min(n0 + 8 * (2 * tile + r) + g, p.outs - 1);
            load_pair(words + 2 * (r * p.pairs + i), factors + 2 * (r * p.pairs + i), w, wscale, n, blocks,
                      begin + 2 * (step + i), end);
        }
}

// Computes sums of each part of the columns: parts[part][row][matrix row of the group].
INLINE void sum_parts(__local sum_of *parts, uint2 *words, float2 *factors, product_shape p, __global const uint4 *w,
                      __global const float *wscale, uint n0, __local const uint2 *codes, __local const float *scale,
                      __local const int *qsum, uint rows) {
    const uint warp = get_local_id(0) / 32, lane = get_local_id(0) % 32, g = lane / 4, t = lane % 4;
    const uint split_k = WARPS / p.split_n, blocks = p.width / 128, share = SHARE_OF(p.width, p.split_n);
    const uint tile = warp / split_k, part = warp % split_k;
    sum_of sums[SUMS_OF(1)];
    UNROLL
    for (uint i = 0; i < SUMS_OF(1); ++i) sums[i] = 0;
    for (uint step = 0; step < share; step += p.pairs) {
        if (step > 0) load_part(words, factors, p, w, wscale, n0, step);
        UNROLL
        for (uint i = 0; i < 4 * p.pairs; ++i) {
            OPAQUE_WORD(words[i].x);
            OPAQUE_WORD(words[i].y);
        }
        UNROLL
        for (uint i = 0; i < 2 * p.pairs; ++i)
            multiply_block(sums, words, factors, 1, p.pairs, i, codes, (__local const float4 *)scale,
                           (__local const int4 *)qsum, 0, rows - 1, ROW_PITCH(p.width), blocks,
                           min(2 * (part * share + step) + i, blocks - 1));
    }
    UNROLL
    for (uint i = 0; i < 4; ++i) {
        const uint row = 2 * t + i % 2;
        if (row < ROOM)
            parts[((part * ROOM + row) * p.split_n + tile) * 16 + 8 * (i / 2) + g] = whole_sum(sums, 0, 0, i);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

// Returns the product of a row with matrix row `which` of the group, whose scale is `unit`.
INLINE float of_parts(__local const sum_of *parts, product_shape p, uint row, uint which, __local const float *scale,
                      __local const int *qsum, float unit) {
    const uint matrix_rows = p.split_n * 16;
    sum_of sum = parts[row * matrix_rows + which];
    UNROLL
    for (uint i = 1; i < WARPS / p.split_n; ++i) sum += parts[(i * ROOM + row) * matrix_rows + which];
    return (float)(sum - qsum[row]) * scale[row] * unit;
}

// Norms rows of x and multiplies them: y[row, n] (+)= the product, or act(gate) * up. words, factors: the group's first
// weights. A work-item stores one output of each outs_of(p).
INLINE void multiply_rows(uint2 *words, float2 *factors, product_shape p, __global const float *x,
                          __global const float *gamma, bool norm, __global const uint4 *w, __global const float *wscale,
                          __global float *y, bool add, uint rows, float eps, __local uint4 *pool, __local sum_of *parts,
                          __local float *scale, __local int *qsum, __local float *found, __local float *scratch,
                          __local const uint *lost) {
    const uint lid = get_local_id(0), each = outs_of(p), row = lid / each, start = get_group_id(0) * each;
    const bool once = each * MEMBERS >= p.outs;
    norm_rows(x, gamma, rows, p.columns, p.width, norm, ROW_WARPS_OF(p.width), eps, (__local uint *)pool, scale, qsum, found,
              scratch);
    for (uint n0 = start; n0 < p.outs; n0 += each * MEMBERS) {
        const uint n = n0 + lid % each;
        const bool stores = row < rows && n < p.outs;
        __global float *to = y + (ulong)min(row, rows - 1) * p.outs + min(n, p.outs - 1);
        const float before = add ? load_now(to) : 0;
        float unit[2];
        UNROLL
        for (uint k = 0; k < p.stored; ++k) unit[k] = load_now(wscale + k * p.outs + min(n, p.outs - 1));
        if (!once && n0 > start) load_part(words, factors, p, w, wscale, n0, 0);
        sum_parts(parts, words, factors, p, w, wscale, n0, (__local const uint2 *)pool, scale, qsum, rows);
        if (stores) {
            float value;
            if (p.stored == 2) {
                const uint which = lid % each / 8 * 16 + lid % 8;
                value = gated(of_parts(parts, p, row, which, scale, qsum, unit[0]),
                              of_parts(parts, p, row, which + 8, scale, qsum, unit[1]));
            } else {
                value = of_parts(parts, p, row, lid % each, scale, qsum, unit[0]);
            }
            *to = *lost ? NAN : before + value;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

// Declares shape, words and factors of a product, and loads the first weights.
#define PRODUCT(NAME, COLUMNS_, OUTS, STORED, SPLIT_N_)                                                                \
    const product_shape shape_##NAME = {COLUMNS_, PADDED(COLUMNS_), OUTS, STORED, SPLIT_N_,                            \
                                        PAIRS_OF(PADDED(COLUMNS_), SPLIT_N_)};                                         \
    uint2 words[4 * PAIRS_OF(PADDED(COLUMNS_), SPLIT_N_)];                                                              \
    float2 factors[4 * PAIRS_OF(PADDED(COLUMNS_), SPLIT_N_)];                                                           \
    load_part(words, factors, shape_##NAME, w_##NAME, s_##NAME, get_group_id(0) * outs_of(shape_##NAME), 0);
#define MULTIPLY(NAME, X, NORMED, Y, ADDED)                                                                            \
    multiply_rows(words, factors, shape_##NAME, X, gamma_##NAME, NORMED, w_##NAME, s_##NAME, Y, ADDED, rows, eps, pool, \
                  parts, scales, qsums, found, scratch, &lost);

KERNEL decoder_layer_few(ARGUMENTS) {
    PARAMETERS
    LAYER_OPERANDS
    __local uint4 pool[LARGER(CODES_QUADS, LOCAL_QUADS)];  // codes; attention uses this memory between products
    __local sum_of parts[PART_WORDS];
    __local float fresh[(HEADS + 2) * HEAD_DIM] __attribute__((aligned(32)));
    __local float scales[ROOM] __attribute__((aligned(16)));
    __local int qsums[ROOM] __attribute__((aligned(16)));
    __local float found[4 * WARPS], scratch[3 * EXCHANGED], inverses[HEADS + 1];
    __local uint arrived, lost;
    if (get_local_id(0) == 0) lost = *(volatile __global uint *)(workspace + LOST);
    barrier(CLK_LOCAL_MEM_FENCE);
    {
        PRODUCT(qkv, HIDDEN, QKV, 1, SPLIT_QKV)
        MULTIPLY(qkv, x, true, qkv, false)
    }
    arrive(workspace, 0);
    const attention_unit unit = unit_at(get_group_id(0), step, rows);
    await(workspace, 0, &lost);
    attend_rows(unit, qkv, step, rope, q_gamma, k_gamma, k_cache, v_cache, tables, heads, rows, row_bytes, max_blocks,
                scale, eps, workspace + 16 * LINE, (__local float4 *)pool, fresh, inverses, scratch, &arrived);
    arrive(workspace, 1);
    {
        PRODUCT(o, QUERIES, HIDDEN, 1, SPLIT_X)
        await(workspace, 1, &lost);
        MULTIPLY(o, heads, NORM, x, true)
    }
    arrive(workspace, 2);
    {
        PRODUCT(up, HIDDEN, FFN, 2, SPLIT_UP)
        await(workspace, 2, &lost);
        MULTIPLY(up, x, true, m, false)
    }
    arrive(workspace, 3);
    {
        PRODUCT(down, FFN, HIDDEN, 1, SPLIT_X)
        await(workspace, 3, &lost);
        MULTIPLY(down, m, NORM, x, true)
    }
}

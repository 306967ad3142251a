// A decoder layer for one row: norm_matmul (q, k and v), rope_attention, norm_matmul (added to x), norm_matmul_glu,
// norm_matmul (added to x), by MEMBERS groups with four barriers among them. Each group has its rows of every matrix,
// and prefetches the weights of its next product into registers while it waits. Data that other groups wrote before a
// barrier is read by instructions after it.
// x f32[HIDDEN]; qkv f32[QKV]; step i32[4]; heads f32[QUERIES]; m f32[FFN]; rope, tables and caches as in
// rope_attention.cl; gamma_*, w_*, s_*: gamma, w and wscale for qkv, for the heads (o), for gate and up, and for m
// (down).
#define QUERIES (N_HEADS * HEAD_DIM)
#define QKV (QUERIES + 2 * KV_HEADS * HEAD_DIM)
#define PADDED(columns) (CEIL_DIV(columns, 128) * 128)
#define WIDE PADDED(HIDDEN)
#define WIDE_O PADDED(QUERIES)
#define WIDE_M PADDED(FFN)
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define MOST_WIDTH LARGER(LARGER(WIDE, WIDE_O), WIDE_M)
#define MOST_ROWS (2 * UP_ROWS)
#define GROUPS (N_HEADS / HEADS)  // groups of heads
#define SPLITS (MEMBERS < GROUPS ? 1 : MEMBERS / GROUPS)
#include "attend.clh"
#include "glu.clh"
#include "meeting.clh"
#include "norm_row.clh"
#include "store_row.clh"

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

// Computes rotated queries of a group of heads, times log2(e) * scale, and the newest key and value.
INLINE void stage(__local float *fresh, __global const float *qkv, __global const float *angle,
                  __global const float *q_gamma, __global const float *k_gamma, uint group, uint kv_head, float scale,
                  float eps, __local float *inverses, __local float *scratch) {
#define HEAD_OF(which) ((which) < HEADS ? group * HEADS + (which) : N_HEADS + ((which) - HEADS) * KV_HEADS + kv_head)
#if QKNORM  // one team per head; all do the same number of rounds
    for (uint first = 0; first <= HEADS; first += TEAMS) {
        const uint which = first + get_local_id(0) / LANES, lane = get_local_id(0) % LANES;
        float sum = 0;
        for (uint d = lane; which <= HEADS && d < HEAD_DIM; d += LANES) {
            const float value = load_now(qkv + HEAD_OF(which) * HEAD_DIM + d);
            sum = fma(value, value, sum);
        }
        const float mean = lanes_sum(sum, scratch, LANES) / (float)HEAD_DIM;
        if (which <= HEADS && lane == 0) inverses[which] = isfinite(mean) ? 1.0f / sqrt(mean + eps) : NAN;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    for (uint e = get_local_id(0); e < (HEADS + 2) * HEAD_DIM; e += GROUP) {
        const uint which = e / HEAD_DIM, d = e % HEAD_DIM, head = HEAD_OF(which);
#if INTERLEAVED
        const uint other = d ^ 1, j = d / 2;
        const bool is_first = d % 2 == 0;
#else
        const uint other = (d + HEAD_DIM / 2) % HEAD_DIM, j = d % (HEAD_DIM / 2);
        const bool is_first = d < HEAD_DIM / 2;
#endif
        float value = load_now(qkv + head * HEAD_DIM + d);
        if (which <= HEADS) {
            const float c = angle[2 * j], s = angle[2 * j + 1];
            float pair = load_now(qkv + head * HEAD_DIM + other);
#if QKNORM
            __global const float *gamma = which < HEADS ? q_gamma : k_gamma;
            value = value * inverses[which] * gamma[d];
            pair = pair * inverses[which] * gamma[other];
#endif
            value = value * c + pair * (is_first ? -s : s);
        }
        fresh[e] = which < HEADS ? value * (scale * M_LOG2E_F) : value;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

INLINE float8 staged(__local const float *head) {
    const uint lane = get_local_id(0) % LANES;
    return lane < ACTIVE ? vload8(lane, head) : (float8)0;
}

INLINE quantized unless(quantized row, __local const uint *lost) {
    if (*lost) row.scale = NAN;
    return row;
}

KERNEL decoder_layer(ARGUMENTS) {
    PARAMETERS
    AT_SHARED(float, x);
    AT_SHARED(float, qkv);
    AT_IN(float, q_gamma);
    AT_IN(float, k_gamma);
    AT_IN(int, step);
    AT_IN(float, rope);
    AT_IN(int, tables);
    AT_SHARED(float, heads);
    AT_SHARED(float, m);
    AT_IN(float, gamma_qkv);
    AT_IN(uint4, w_qkv);
    AT_IN(float, s_qkv);
    AT_SHARED(uchar, k_cache);
    AT_SHARED(uchar, v_cache);
    AT_IN(float, gamma_o);
    AT_IN(uint4, w_o);
    AT_IN(float, s_o);
    AT_IN(float, gamma_up);
    AT_IN(uint4, w_up);
    AT_IN(float, s_up);
    AT_IN(float, gamma_down);
    AT_IN(uint4, w_down);
    AT_IN(float, s_down);
    AT_SHARED(uint, workspace);
    __local uint4 codes[LARGER(CODES_OF(MOST_WIDTH), LOCAL_QUADS)];
    __local float4 *shared = (__local float4 *)codes;  // attention uses this memory between products
    __local float fresh[(HEADS + 2) * HEAD_DIM] __attribute__((aligned(32)));
    __local float scratch[3 * EXCHANGED], inverses[HEADS + 1];
    __local uint arrived, lost;
    const uint lid = get_local_id(0), lane = lid % LANES;
    if (lid == 0) lost = *(volatile __global uint *)(workspace + LOST);
    barrier(CLK_LOCAL_MEM_FENCE);
    const int position = step[1], slot = step[2];
    const bool used = position >= 0 && slot >= 0;
    __global const int *table = tables + (ulong)step[3] * max_blocks;
    __global const float *angle = rope + (ulong)max(position, 0) * HEAD_DIM;
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
    await(workspace, 0, &lost);
    if (!used)
        for (uint i = get_group_id(0) * GROUP + lid; i < QUERIES; i += MEMBERS * GROUP) heads[i] = 0;
    for (uint unit = get_group_id(0); used && unit < GROUPS * SPLITS; unit += MEMBERS) {
        const uint group = unit % GROUPS, kv_head = group * HEADS / (N_HEADS / KV_HEADS);
        const span_of span = span_of_split(position, unit / GROUPS);
        if (span.split >= span.splits) continue;
        stage(fresh, qkv, angle, q_gamma, k_gamma, group, kv_head, scale, eps, inverses, scratch);
        float8 query[HEADS];
        UNROLL
        for (uint h = 0; h < HEADS; ++h) query[h] = staged(fresh + h * HEAD_DIM);
        if (span.split == span.splits - 1) {
            const ulong newest = cache_row(slot, kv_head, KV_HEADS, row_bytes);
            store_row(staged(fresh + HEADS * HEAD_DIM), k_cache + newest, row_bytes, scratch);
            store_row(staged(fresh + (HEADS + 1) * HEAD_DIM), v_cache + newest, row_bytes, scratch);
            barrier(CLK_GLOBAL_MEM_FENCE);
        }
        attend(query, k_cache, v_cache, table, heads + group * HEADS * HEAD_DIM, span, kv_head, KV_HEADS, row_bytes, 0,
               group, GROUPS, workspace + 16 * LINE, shared, scratch, &arrived);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
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

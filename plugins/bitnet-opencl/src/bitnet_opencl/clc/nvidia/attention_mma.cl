// attention for prompts on NVIDIA's tensor cores (compute capability 8.0 and later; f16 caches, HEAD_DIM 64 or 128):
// out[t, h] = sum_p softmax_p(scale * q[t, h] . k[p]) v[p], p = 0..position[t], with a running maximum over spans of
// SPAN positions (flash attention, Dao et al. 2022). Shapes as in attention.cl.
// A group computes TILE_T rows of the step and TILE_N query heads of one key/value head; each warp computes 16 rows of
// one head. Keys and values are copied asynchronously, a span ahead. Rows of a tile that belong to one sequence are
// processed together, one sequence after the other.
// q and the weights are f32: each is split into the sum of two f16 (22 bits), multiplied in sequence, so that f16
// products lose nothing that f32 would keep. |q| * scale must stay below 45,000, else the row becomes NaN.
#include "tensor.clh"
#define SPAN 32  // half of a cache block
#define CHUNKS (HEAD_DIM / 8)  // uint4 of a cache row
#define KEYS (SPAN * CHUNKS)  // uint4 of the keys of a span, or of its values
#define K_STEPS (HEAD_DIM / 16)
#define S_TILES (SPAN / 8)
#define WARP_ROWS 16

// Swizzled by row, so that the eight rows of a matrix lie in different banks.
INLINE uint word_of(uint row, uint chunk) { return row * CHUNKS + (chunk ^ row % 8); }

INLINE float over_row(float v, bool largest) {  // over the four lanes that share a row of a fragment
    for (uint mask = 1; mask < 4; mask *= 2) {
        const float other = shuffle_xor_float(v, mask);
        v = largest ? fmax(v, other) : v + other;
    }
    return v;
}

// Copies positions start .. start + SPAN - 1 of a sequence; zeros from `count` on, since the cache may hold anything
// there, NaN too.
INLINE void load_span(__local uint4 *to, __global const uint4 *keys, __global const uint4 *values, ulong row, uint count) {
    for (uint i = get_local_id(0); i < KEYS; i += GROUP) {
        const uint at = word_of(i / CHUNKS, i % CHUNKS);
        copy_async(to + at, keys + row * CHUNKS + i, i / CHUNKS < count);
        copy_async(to + KEYS + at, values + row * CHUNKS + i, i / CHUNKS < count);
    }
}

KERNEL attention_mma(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, q);
    AT_IN(uint4, k_cache);
    AT_IN(uint4, v_cache);
    AT_IN(int, step);
    AT_IN(int, tables);
    AT_OUT(float, out);
    __local uint4 pool[2][2 * KEYS];
    __local int positions[TILE_T], sequences[TILE_T];
    const uint lid = get_local_id(0), lane = lid % 32, g = lane / 4, t = lane % 4, warp = lid / 32;
    const uint first = (get_num_groups(1) - 1 - get_group_id(1)) * TILE_T;  // long rows first
    const uint head = get_group_id(0) * TILE_N + warp / (TILE_T / WARP_ROWS), kv_head = head / (n_heads / n_kv_heads);
    const uint at = warp % (TILE_T / WARP_ROWS) * WARP_ROWS;
    for (uint i = lid; i < TILE_T; i += GROUP) {
        const bool used = first + i < rows;
        positions[i] = used ? step[4 * (first + i) + 1] : -1;
        sequences[i] = used ? step[4 * (first + i) + 3] : -1;
    }
    uint q_high[K_STEPS][4], q_low[K_STEPS][4];
    UNROLL
    for (uint k = 0; k < K_STEPS; ++k)
        UNROLL
        for (uint i = 0; i < 4; ++i) {
            const uint row = min(first + at + g + 8 * (i % 2), rows - 1);
            const float2 pair = *(__global const float2 *)(q + ((ulong)row * n_heads + head) * HEAD_DIM + 16 * k +
                                                           8 * (i / 2) + 2 * t) * (scale * M_LOG2E_F);
            split_halves(pair.x, pair.y, &q_high[k][i], &q_low[k][i]);
        }
    float acc[HEAD_DIM / 8][4], largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    UNROLL
    for (uint n = 0; n < HEAD_DIM / 8; ++n)
        UNROLL
        for (uint j = 0; j < 4; ++j) acc[n][j] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);

    for (uint run = 0, end; run < TILE_T; run = end) {
        const int sequence = sequences[run];
        int longest = -1, last[2];
        for (end = run; end < TILE_T && sequences[end] == sequence; ++end) longest = max(longest, positions[end]);
        if (longest < 0) continue;
        UNROLL
        for (uint i = 0; i < 2; ++i) {
            const uint row = at + g + 8 * i;
            last[i] = row >= run && row < end ? positions[row] : -1;
        }
        __global const int *table = tables + (ulong)sequence * max_blocks;
        const uint spans = (uint)longest / SPAN + 1;
        for (uint b = 0; b <= spans; ++b) {  // loads span b, computes span b - 1
            if (b < spans) {
                const ulong slot = cache_row(table[b * SPAN / KV_BLOCK] * KV_BLOCK + b * SPAN % KV_BLOCK, kv_head, n_kv_heads, 1);
                load_span(pool[b % 2], k_cache, v_cache, slot, (uint)longest + 1 - b * SPAN);
            }
            copy_group();
            if (b == 0) continue;
            copy_wait();
            barrier(CLK_LOCAL_MEM_FENCE);
            const int start = (int)(b - 1) * SPAN;
            __local const uint4 *keys = pool[(b - 1) % 2], *values = keys + KEYS;
            float s[S_TILES][4];
            UNROLL
            for (uint n = 0; n < S_TILES; ++n)
                UNROLL
                for (uint j = 0; j < 4; ++j) s[n][j] = 0;
            UNROLL
            for (uint k = 0; k < K_STEPS; ++k)
                UNROLL
                for (uint n = 0; n < S_TILES; n += 2) {
                    uint part[4];
                    load_matrices(part, keys + word_of(8 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
                    mma_half(s[n], q_low[k], part[0], part[1]);
                    mma_half(s[n + 1], q_low[k], part[2], part[3]);
                    mma_half(s[n], q_high[k], part[0], part[1]);
                    mma_half(s[n + 1], q_high[k], part[2], part[3]);
                }
            float now[2] = {largest[0], largest[1]}, faded[2];
            UNROLL
            for (uint n = 0; n < S_TILES; ++n)
                UNROLL
                for (uint j = 0; j < 4; ++j) {
                    if (start + (int)(8 * n + 2 * t + j % 2) > last[j / 2]) s[n][j] = -INFINITY;
                    now[j / 2] = fmax(now[j / 2], s[n][j]);
                }
            UNROLL
            for (uint i = 0; i < 2; ++i) {
                now[i] = over_row(now[i], true);
                const float base = now[i] == -INFINITY ? 0.0f : now[i];
                faded[i] = exp2(largest[i] - base);
                largest[i] = now[i];
                now[i] = base;
                total[i] *= faded[i];
            }
            UNROLL
            for (uint n = 0; n < S_TILES; ++n)
                UNROLL
                for (uint j = 0; j < 4; ++j) {
                    s[n][j] = exp2(s[n][j] - now[j / 2]);
                    total[j / 2] += s[n][j];
                }
            UNROLL
            for (uint n = 0; n < HEAD_DIM / 8; ++n)
                UNROLL
                for (uint j = 0; j < 4; ++j) acc[n][j] *= faded[j / 2];
            UNROLL
            for (uint k = 0; k < SPAN / 16; ++k) {
                uint high[4], low[4];
                UNROLL
                for (uint i = 0; i < 4; ++i)
                    split_halves(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1], &high[i], &low[i]);
                UNROLL
                for (uint n = 0; n < HEAD_DIM / 8; n += 2) {
                    uint part[4];
                    load_matrices_transposed(part, values + word_of(16 * k + lane / 8 % 2 * 8 + lane % 8, n + lane / 16));
                    mma_half(acc[n], low, part[0], part[1]);
                    mma_half(acc[n + 1], low, part[2], part[3]);
                    mma_half(acc[n], high, part[0], part[1]);
                    mma_half(acc[n + 1], high, part[2], part[3]);
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);  // the span after the next is copied over this one
        }
    }
    UNROLL
    for (uint i = 0; i < 2; ++i) {
        const float sum = over_row(total[i], false);
        const uint row = at + g + 8 * i;
        if (first + row >= rows) continue;
        const float inverse = positions[row] < 0 ? 0.0f : 1.0f / sum;
        __global float2 *to = (__global float2 *)(out + ((ulong)(first + row) * n_heads + head) * HEAD_DIM);
        UNROLL
        for (uint n = 0; n < HEAD_DIM / 8; ++n)
            to[4 * n + t] = positions[row] < 0 ? (float2)0 : (float2)(acc[n][2 * i], acc[n][2 * i + 1]) * inverse;
    }
}

// matmul_ternary_glu for up to eight rows (rows_few.cuh): m[t, n] = act(g) * u, with g and u the outputs n and outs + n
// of matmul_ternary with w[2 outs, width / 4]; act(g) = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1).
// A block computes TILE_N outputs from TILE_N rows of each half. Activations are loaded once per block, a step's
// columns of all tokens at a time.
#include "prelude.cuh"
#include "tensor.cuh"
#include "gated.cuh"
#include "rows_few.cuh"
#define COLUMN_WORDS (16 * SHARES)  // 16-byte words of a token in a step

// Starts the copies of all activations, one group per step, with scales and sums of codes in the last.
__device__ inline void copy(const Few& few, Shared& s, const Words* q, const float* scale, const int* qsum, u32 rows) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        for (u32 at = threadIdx.x; at < rows * COLUMN_WORDS; at += GROUP) {
            u32 token = at / COLUMN_WORDS, word = i * COLUMN_WORDS + at % COLUMN_WORDS;
            if (word < few.words) copy_async(few.at(token, word), q + (size_t)token * few.words + word);
        }
        if (i == STEPS - 1 && threadIdx.x < rows) {
            copy_async_word(s.scale + threadIdx.x, scale + threadIdx.x);
            copy_async_word(s.qsum + threadIdx.x, qsum + threadIdx.x);
        }
        copy_group();
    }
}

KERNEL matmul_ternary_glu(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* m,
                          u32 rows, u32 outs, u32 width) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Shared s;
    u32 n0 = blockIdx.x * TILE_N, token = threadIdx.x / TILE_N, r = threadIdx.x % TILE_N, n = n0 + r;
    Few few(pool, width);
    let_next_start();
    Words codes[STEPS][M_TILES][2];
    few.load(codes, w, [=](u32 r) { return min(n0 + r % TILE_N, outs - 1) + r / TILE_N * outs; });
    float gate_scale = wscale[min(n, outs - 1)], up_scale = wscale[outs + min(n, outs - 1)];
    wait_for_previous();
    copy(few, s, q, scale, qsum, rows);
    int acc[M_TILES][4][4] = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        if (i + 1 == STEPS) copy_wait<0>();
        else if (i + 2 == STEPS) copy_wait<1>();
        else copy_wait<2>();
        __syncthreads();
        few.multiply(acc, codes[i], i);
    }
    few.put(acc);
    if (token >= rows || n >= outs) return;
    float gate = (float)few.sum(s, token, r) * s.scale[token] * gate_scale;
    float up = (float)few.sum(s, token, TILE_N + r) * s.scale[token] * up_scale;
    m[(size_t)token * outs + n] = gated(gate, up);
}

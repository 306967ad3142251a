// matmul_dense for a table with few rows (gates of delta nets), f32 (DTYPE 0), f16 (1) or bf16 (2), with a width that
// is a multiple of 4. All threads of a block share the columns of TILE_N rows of w and TILE_T rows of x: a thread takes
// EACH groups of four columns, and loads DEPTH of them at once, the first DEPTH before the preceding kernels have
// finished.
#include "prelude.cuh"

struct alignas(8) TwoWords {
    u32 x, y;
};
#if DTYPE == 0
typedef Floats Stored;
__device__ inline Floats four_weights(const Stored& from) { return from; }
#elif DTYPE == 1
typedef TwoWords Stored;
__device__ inline Floats four_weights(const Stored& from) {
    return {half_to_float((u16)from.x), half_to_float((u16)(from.x >> 16)), half_to_float((u16)from.y), half_to_float((u16)(from.y >> 16))};
}
#else
typedef TwoWords Stored;
__device__ inline Floats four_weights(const Stored& from) {
    return {__uint_as_float(from.x << 16), __uint_as_float(from.x & 0xffff0000u), __uint_as_float(from.y << 16),
            __uint_as_float(from.y & 0xffff0000u)};
}
#endif

KERNEL matmul_dense(const Floats* x, const Stored* w, float* y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    __shared__ float sums[GROUP / 32][TILE_N * TILE_T];
    u32 n0 = blockIdx.x * TILE_N, t0 = blockIdx.y * TILE_T, fours = width / 4;
    float acc[TILE_N][TILE_T];
    let_next_start();
#pragma unroll
    for (int i = 0; i < TILE_N * TILE_T; i++) acc[i / TILE_T][i % TILE_T] = 0.0f;
#pragma unroll 1
    for (u32 first = 0; first < EACH; first += DEPTH) {
        Stored weights[DEPTH][TILE_N];
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++)
#pragma unroll
            for (u32 n = 0; n < TILE_N; n++)
                weights[d][n] = w[(size_t)min(n0 + n, outs - 1) * fours + min((first + d) * GROUP + threadIdx.x, fours - 1)];
        if (first == 0) wait_for_previous();
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) {
            u32 at = (first + d) * GROUP + threadIdx.x;
            if (at >= fours) break;
#pragma unroll
            for (u32 t = 0; t < TILE_T; t++) {
                Floats in = x[(size_t)min(t0 + t, rows - 1) * fours + at];
#pragma unroll
                for (u32 n = 0; n < TILE_N; n++) {
                    Floats by = four_weights(weights[d][n]);
                    acc[n][t] += by.x * in.x + by.y * in.y + by.z * in.z + by.w * in.w;
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < TILE_N * TILE_T; i++) {
        float sum = warp_sum(acc[i / TILE_T][i % TILE_T]);
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32][i] = sum;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < TILE_N * TILE_T; i += GROUP) {
        u32 n = n0 + i / TILE_T, t = t0 + i % TILE_T;
        float sum = 0.0f;
        for (u32 part = 0; part < GROUP / 32; part++) sum += sums[part][i];
        if (n < outs && t < rows) y[(size_t)t * y_stride + y_first + n] = sum;
    }
}

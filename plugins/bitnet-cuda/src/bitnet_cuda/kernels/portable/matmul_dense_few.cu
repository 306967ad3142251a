// matmul_dense for up to TILE_T <= 8 rows of x and an f16 table with a width that is a multiple of 8, f32 sums. A warp
// computes TILE_N / WARPS rows of w. A lane loads eight columns of each row at a time, UNROLL such chunks at once.
#include "prelude.cuh"

#define WARPS (GROUP / 32)
#define OUTS (TILE_N / WARPS)

KERNEL matmul_dense(const Floats* x, const Words* w, float* y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    u32 lane = threadIdx.x % 32, n0 = blockIdx.x * TILE_N + threadIdx.x / 32 * OUTS, chunks = width / 8;
    let_next_start();
    float acc[OUTS][TILE_T];
#pragma unroll
    for (int i = 0; i < OUTS * TILE_T; i++) acc[i / TILE_T][i % TILE_T] = 0.0f;
    bool waited = false;
    for (u32 start = lane; start < chunks; start += 32 * UNROLL) {
        Words weights[UNROLL][OUTS];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int o = 0; o < OUTS; o++) {
                u32 c = start + 32 * u;
                weights[u][o] = c < chunks ? load_streaming(w + (size_t)min(n0 + o, outs - 1) * chunks + c)
                                           : Words{0, 0, 0, 0};
            }
        if (!waited) wait_for_previous();
        waited = true;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            u32 c = start + 32 * u;
            if (c >= chunks) break;
#pragma unroll
            for (int t = 0; t < TILE_T; t++) {
                if (t >= rows) break;
                Floats a = x[((size_t)t * chunks + c) * 2], b = x[((size_t)t * chunks + c) * 2 + 1];
#pragma unroll
                for (int o = 0; o < OUTS; o++) {
                    Words p = weights[u][o];
                    acc[o][t] += half_to_float((u16)p.x) * a.x + half_to_float((u16)(p.x >> 16)) * a.y +
                                 half_to_float((u16)p.y) * a.z + half_to_float((u16)(p.y >> 16)) * a.w +
                                 half_to_float((u16)p.z) * b.x + half_to_float((u16)(p.z >> 16)) * b.y +
                                 half_to_float((u16)p.w) * b.z + half_to_float((u16)(p.w >> 16)) * b.w;
                }
            }
        }
    }
    if (!waited) wait_for_previous();
#pragma unroll
    for (int o = 0; o < OUTS; o++)
#pragma unroll
        for (int t = 0; t < TILE_T; t++) {
            float sum = warp_sum(acc[o][t]);
            if (lane == 0 && n0 + o < outs && t < rows) y[(size_t)t * y_stride + y_first + n0 + o] = sum;
        }
}

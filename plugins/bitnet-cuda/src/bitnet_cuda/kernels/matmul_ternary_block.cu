// y[t, y_first + n] (+)= scale[t] * sum_b wscale[n,b] * (sum over block b of (code - 1) q[t,k]), blocks of BLOCK columns.
// A block makes TILE_N x TILE_T outputs; GROUP / TILE_N lanes (a power of two, at most 32) share a weight row.
#include "prelude.cuh"

#define LANES (GROUP / TILE_N)

__device__ inline int dot16(Words w, int shift, Words q) {
    const u32 m = 0x03030303u, one = 0x01010101u;
    int codes = dot4((w.x >> shift) & m, q.x, dot4((w.y >> shift) & m, q.y, 0));
    codes = dot4((w.z >> shift) & m, q.z, dot4((w.w >> shift) & m, q.w, codes));
    return codes - dot4(one, q.x, dot4(one, q.y, dot4(one, q.z, dot4(one, q.w, 0))));
}

KERNEL matmul_ternary_block(const Words* w, const float* wscale, const Words* q, const float* scale, float* y, u32 rows,
                            u32 outs, u32 width, u32 y_stride, u32 y_first) {
    u32 lane = threadIdx.x % LANES, n = blockIdx.x * TILE_N + threadIdx.x / LANES, first = blockIdx.y * TILE_T;
    u32 chunks = width / 64, tokens = min((u32)TILE_T, rows - first), scales = (width + BLOCK - 1) / BLOCK;
    float acc[TILE_T];
#pragma unroll
    for (int t = 0; t < TILE_T; t++) acc[t] = 0.0f;
    if (n < outs)
        for (u32 c = lane; c < chunks; c += LANES) {
            Words codes = load_streaming(w + (size_t)n * chunks + c);
            for (int s = 0; s < 4; s++) {
                float weight = wscale[(size_t)n * scales + ((c >> 1) * 128 + 32 * s) / BLOCK];
#pragma unroll
                for (int t = 0; t < TILE_T; t++) {
                    if (t >= tokens) break;
                    const Words* a = q + (size_t)(first + t) * (width / 16) + (c >> 1) * 8 + (c & 1u);
                    acc[t] += weight * (float)dot16(codes, 6 - 2 * s, a[2 * s]);
                }
            }
        }
#pragma unroll
    for (int t = 0; t < TILE_T; t++) {
        float sum = acc[t];
        for (int d = LANES / 2; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (lane == 0 && n < outs && t < tokens) {
            float value = sum * scale[first + t];
            size_t at = (size_t)(first + t) * y_stride + y_first + n;
            y[at] = ADD ? y[at] + value : value;
        }
    }
}

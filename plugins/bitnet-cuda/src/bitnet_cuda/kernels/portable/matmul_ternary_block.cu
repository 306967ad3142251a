// y[t, y_first + n] (+)= sum_a wscale[n, 32 a / BLOCK] * scale[t, a] * (sum over the 32 columns of a of (code[n,k] - 1)
// q[t,k]); with ABLOCK 0, scale[t] replaces scale[t, a]. BLOCK: the columns of a weight scale.
// A block computes TILE_N x TILE_T outputs; GROUP / TILE_N lanes (a power of two, at most 32) share a weight row.
#include "prelude.cuh"
#include "signs.cuh"

#define LANES (GROUP / TILE_N)

__device__ inline int dot16(Words w, int s, Words q) {
    int low = dot4(signs(w.x, s), q.x, dot4(signs(w.y, s), q.y, 0));
    return dot4(signs(w.z, s), q.z, dot4(signs(w.w, s), q.w, low));
}

KERNEL matmul_ternary_block(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                            float* y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    let_next_start();
    wait_for_previous();
    u32 lane = threadIdx.x % LANES, n = blockIdx.x * TILE_N + threadIdx.x / LANES, first = blockIdx.y * TILE_T;
    u32 chunks = width / 64, tokens = min((u32)TILE_T, rows - first), scales = (width + BLOCK - 1) / BLOCK;
    float acc[TILE_T];
#pragma unroll
    for (int t = 0; t < TILE_T; t++) acc[t] = 0.0f;
    if (n < outs)
        for (u32 c = lane; c < chunks; c += LANES) {
            Words codes = load_streaming(w + (size_t)n * chunks + c);
            for (int s = 0; s < 4; s++) {
                float weight = wscale[(size_t)n * scales + ((c >> 1) * 128 + 32 * s) / BLOCK] * SIGN;
#pragma unroll
                for (int t = 0; t < TILE_T; t++) {
                    if (t >= tokens) break;
                    size_t row = first + t;
                    float factor = ABLOCK ? weight * scale[row * (width / 32) + (c >> 1) * 4 + s] : weight;
                    acc[t] += factor * (float)dot16(codes, s, q[row * (width / 16) + (c >> 1) * 8 + (c & 1u) + 2 * s]);
                }
            }
        }
#pragma unroll
    for (int t = 0; t < TILE_T; t++) {
        float sum = acc[t];
        for (int d = LANES / 2; d > 0; d >>= 1) sum += shuffle_xor(sum, d);
        if (lane == 0 && n < outs && t < tokens) {
            float value = ABLOCK ? sum : sum * scale[first + t];
            size_t at = (size_t)(first + t) * y_stride + y_first + n;
            y[at] = ADD ? y[at] + value : value;
        }
    }
}

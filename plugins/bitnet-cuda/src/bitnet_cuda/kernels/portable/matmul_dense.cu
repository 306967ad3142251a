// y[l, y_first + n] = sum_k x[l,k] w[n,k], f32 sums; w[N, width] of DTYPE.
// A block computes TILE_N x TILE_T outputs; GROUP / TILE_N lanes (a power of two, at most 32) share a row of w.
#include "prelude.cuh"
#include "dense.cuh"

#define LANES (GROUP / TILE_N)

KERNEL matmul_dense(const float* x, const u8* w, float* y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first) {
    let_next_start();
    wait_for_previous();
    u32 lane = threadIdx.x % LANES, n = blockIdx.x * TILE_N + threadIdx.x / LANES, first = blockIdx.y * TILE_T;
    u32 tokens = min((u32)TILE_T, rows - first);
    float acc[TILE_T];
#pragma unroll
    for (int t = 0; t < TILE_T; t++) acc[t] = 0.0f;
    if (n < outs) {
        if (DTYPE == 1 && width % 8 == 0) {  // eight f16 at a time
            const Words* row = (const Words*)w + (size_t)n * (width / 8);
            for (u32 c = lane; c < width / 8; c += LANES) {
                Words packed = load_streaming(row + c);
                u32 pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float a = half_to_float((u16)(pairs[i] & 0xffffu)), b = half_to_float((u16)(pairs[i] >> 16));
#pragma unroll
                    for (int t = 0; t < TILE_T; t++) {
                        if (t >= tokens) break;
                        const float* in = x + (size_t)(first + t) * width + 8 * c + 2 * i;
                        acc[t] += a * in[0] + b * in[1];
                    }
                }
            }
        } else {
            for (u32 k = lane; k < width; k += LANES) {
                float weight = table_element(w, (size_t)n * width + k);
#pragma unroll
                for (int t = 0; t < TILE_T; t++) {
                    if (t >= tokens) break;
                    acc[t] += weight * x[(size_t)(first + t) * width + k];
                }
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TILE_T; t++) {
        float sum = acc[t];
        for (int d = LANES / 2; d > 0; d >>= 1) sum += shuffle_xor(sum, d);
        if (lane == 0 && n < outs && t < tokens) y[(size_t)(first + t) * y_stride + y_first + n] = sum;
    }
}

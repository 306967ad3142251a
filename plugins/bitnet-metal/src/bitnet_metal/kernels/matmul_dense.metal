// y[l, y_first + n] = sum_k x[l, k] w[n, k] in f32 for TILE_T <= 4 rows l: a simdgroup computes two matrix rows, a lane
// loads four columns at a time. FAST: rows of f32, f16 or bf16 are whole vectors of four. x f32[rows, width]; w[outs,
// width] of DTYPE; y f32[rows, y_stride].
#include "dense.h"
inline float4 four_of(device const uchar *row, uint i, uint width) {  // columns 4i..4i + 3, zeros past the width
    if (FAST == 1) {
        if (DTYPE == 0) return ((device const float4 *)row)[i];
        if (DTYPE == 1) return float4(((device const half4 *)row)[i]);
        return as_type<float4>(uint4(((device const ushort4 *)row)[i]) << 16);
    }
    float4 made = float4(0.0f);
    for (uint j = 0; j < 4; j++) {
        if (4 * i + j < width) made[j] = element(row, 4 * i + j);
    }
    return made;
}

inline float4 activations(device const float *row, uint i, uint width) {
    if (FAST == 1) return ((device const float4 *)row)[i];
    float4 made = float4(0.0f);
    for (uint j = 0; j < 4; j++) {
        if (4 * i + j < width) made[j] = row[4 * i + j];
    }
    return made;
}

kernel void matmul_dense(device const float *x [[buffer(0)]], device const uchar *w [[buffer(1)]],
                         device float *y [[buffer(2)]], constant Params &p [[buffer(3)]],
                         uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    uint lane = tid % 32, out = group.x * TILE_N + tid / 32 * 2, first = group.y * TILE_T;
    device const uchar *a = w + min(out, p.outs - 1) * row_bytes_of(p.width);
    device const uchar *b = w + min(out + 1, p.outs - 1) * row_bytes_of(p.width);
    float sums[8] = {};  // [row][matrix row]
    for (uint i = lane; i < (p.width + 3) / 4; i += 32) {
        float4 one = four_of(a, i, p.width), two = four_of(b, i, p.width);
        for (uint t = 0; t < TILE_T; t++) {
            float4 v = activations(x + min(first + t, p.rows - 1) * p.width, i, p.width);
            sums[2 * t] += dot(one, v);
            sums[2 * t + 1] += dot(two, v);
        }
    }
    for (uint i = 0; i < 2 * TILE_T; i++) {
        float sum = simd_sum(sums[i]);
        uint row = first + i / 2, n = out + i % 2;
        if (lane == 0 && row < p.rows && n < p.outs) y[row * p.y_stride + p.y_first + n] = sum;
    }
}

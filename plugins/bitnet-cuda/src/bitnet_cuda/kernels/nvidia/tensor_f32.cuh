// Products of f32 matrices on tensor cores (mma.m16n8k8 of tf32) with the accuracy of f32: each factor is the sum of
// two numbers of 11 bits, and the smallest of their four products is left out. A lane's columns of a step are 2t and 2t
// + 1 instead of t and t + 4 of the PTX manual, the same for both factors, so that it loads them together.
#include "tensor.cuh"

struct Pair {
    float x, y;
};

__device__ inline void split(float v, u32& high, u32& low) {
    high = __float_as_uint(v) & 0xffffe000u;
    low = __float_as_uint(v - __uint_as_float(high));
}

// Loads 16 rows from `first` on of a matrix in shared memory, eight columns at a time.
struct Rows {
    const float* first;
    u32 pitch;
    __device__ void load(float (&a)[4], u32 step) const {
        u32 lane = threadIdx.x % 32;
        const float* from = first + lane / 4 * pitch + 8 * step + 2 * (lane % 4);
        Pair top = *(const Pair*)from, bottom = *(const Pair*)(from + 8 * pitch);
        a[0] = top.x, a[1] = bottom.x, a[2] = top.y, a[3] = bottom.y;
    }
};
// The same of the transposed matrix, with columns multiplied by `weights`.
struct WeightedColumns {
    const float *first, *weights;
    u32 pitch;
    __device__ void load(float (&a)[4], u32 step) const {
        u32 lane = threadIdx.x % 32, k = 8 * step + 2 * (lane % 4);
        const float* from = first + k * pitch + lane / 4;
        a[0] = from[0] * weights[k], a[1] = from[8] * weights[k];
        a[2] = from[pitch] * weights[k + 1], a[3] = from[pitch + 8] * weights[k + 1];
    }
};
// Loads eight columns of the second factor: tile n of a matrix in shared memory, or of the transposed one.
struct Columns {
    const float* first;
    u32 pitch;
    __device__ Pair load(u32 step, u32 n) const {
        u32 lane = threadIdx.x % 32;
        const float* from = first + (8 * step + 2 * (lane % 4)) * pitch + 8 * n + lane / 4;
        return {from[0], from[pitch]};
    }
};
struct ColumnsOfRows {
    const float* first;
    u32 pitch;
    __device__ Pair load(u32 step, u32 n) const {
        u32 lane = threadIdx.x % 32;
        return *(const Pair*)(first + (8 * n + lane / 4) * pitch + 8 * step + 2 * (lane % 4));
    }
};

// c[16 x 8 N] += a b over `steps` times eight columns of a, for the first `used` tiles of c alone.
template <int N, class A, class B>
__device__ inline void multiply(float (&c)[N][4], A a, B b, u32 steps, u32 used = N) {
#pragma unroll 2
    for (u32 step = 0; step < steps; step++) {
        float of[4];
        u32 high[4], low[4], b_high[N][2], b_low[N][2];
        a.load(of, step);
#pragma unroll
        for (int i = 0; i < 4; i++) split(of[i], high[i], low[i]);
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (n >= used) continue;
            Pair pair = b.load(step, n);
            split(pair.x, b_high[n][0], b_low[n][0]);
            split(pair.y, b_high[n][1], b_low[n][1]);
        }
#pragma unroll
        for (int n = 0; n < N; n++)
            if (n < used) mma_tf32(c[n], low, b_high[n][0], b_high[n][1]);
#pragma unroll
        for (int n = 0; n < N; n++)
            if (n < used) mma_tf32(c[n], high, b_low[n][0], b_low[n][1]);
#pragma unroll
        for (int n = 0; n < N; n++)
            if (n < used) mma_tf32(c[n], high, b_high[n][0], b_high[n][1]);
    }
}

// Calls act(row, column, value) for the lane's elements of c, with row and column in tile n and the value by reference.
template <int N, class F>
__device__ inline void each_element(float (&c)[N][4], F act) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) act(lane / 4 + i / 2 * 8, 8 * n + 2 * (lane % 4) + i % 2, c[n][i]);
}

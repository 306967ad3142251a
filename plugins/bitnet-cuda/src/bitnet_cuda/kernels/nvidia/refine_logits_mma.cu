// refine_logits with the bits of matmul_dense_stream.cu (compute capability 9.0, f16 tables, width a multiple of 64):
// logits that may be among the k largest (open_logits.cuh) are computed again, 16 at a time.
// x is scaled and split into two f16 as there. A warp sums the products of 64 columns, first those of the low f16 of 16
// columns and then those of the high ones; all columns of its tile of eight are the same row of x. The sums of all 64
// columns, in shared memory, are then added in f32, from the first columns on.
#include "prelude.cuh"
#include "open_logits.cuh"
#include "tensor.cuh"
#include "halves.cuh"
#define WARPS (GROUP / 32)
#define TOGETHER 16  // logits

// The row of x: the power of two, by its biased exponent, that brings the largest value into [1, 2).
__device__ inline u32 exponent_of(const Floats* x, u32 fours) {
    __shared__ u32 of_warp[WARPS];
    u32 largest = 0;
    for (u32 i = threadIdx.x; i < fours; i += GROUP) {
        Floats v = x[i];
        float each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++) largest = max(largest, __float_as_uint(each[j]) & 0x7fffffffu);
    }
    largest = warp_max_bits(largest);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) largest = max(largest, of_warp[i]);
    u32 exponent = largest >> 23;
    return exponent == 255 ? 127 : max(254 - max(exponent, 1u), 1u);
}

struct alignas(8) Pair {
    float x, y;
};
struct Split {
    u32 high, low;

    __device__ Split(const Pair& v, float factor) { split_halves(v.x * factor, v.y * factor, high, low); }
};

// sums[c][i] = the sum over columns 64 c .. 64 c + 63 of logit i; rows: of a lane's two logits, g and g + 8.
__device__ inline void multiply(float (*sums)[TOGETHER], const u32* const (&rows)[2], const Pair* x, float factor, u32 chunks) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (u32 chunk = threadIdx.x / 32; chunk < chunks; chunk += WARPS) {
        u32 a[4][4];
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < 4; i++) a[k][i] = rows[i % 2][32 * chunk + 8 * k + i / 2 * 4 + t];
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const Pair* from = x + 32 * chunk + 8 * k + t;
            Split first(from[0], factor), second(from[4], factor);
            mma_half(sum, a[k], first.low, second.low);
            mma_half(sum, a[k], first.high, second.high);
        }
        if (t == 0) sums[chunk][g] = sum[0], sums[chunk][g + 8] = sum[2];
    }
}

KERNEL_RESIDENT(2) refine_logits(const float* x, const u16* w, const float* error, const float* bound, float* logits, u32 rows, u32 outs, u32 width,
                     u32 stride, u32 k) {
    DYNAMIC_SHARED(float, pool);
    __shared__ u16 open[TILE_N];
    float(*sums)[TOGETHER] = (float(*)[TOGETHER])pool;
    u32 found = open_logits(open, x, error, bound, logits, outs, width, stride, k), g = threadIdx.x % 32 / 4, chunks = width / 64;
    if (found == 0) return;
    const float* in = x + (size_t)blockIdx.y * width;
    u32 exponent = exponent_of((const Floats*)in, width / 4), n_first = blockIdx.x * TILE_N;
    for (u32 first = 0; first < found; first += TOGETHER) {
        const u32* of[2];
#pragma unroll
        for (int i = 0; i < 2; i++) of[i] = (const u32*)(w + (size_t)(n_first + open[min(first + g + 8 * i, found - 1)]) * width);
        multiply(sums, of, (const Pair*)in, __uint_as_float(exponent << 23), chunks);
        __syncthreads();
        if (threadIdx.x < min((u32)TOGETHER, found - first)) {
            float sum = sums[0][threadIdx.x];
            for (u32 chunk = 1; chunk < chunks; chunk++) sum += sums[chunk][threadIdx.x];
            float inverse = __uint_as_float((254 - exponent) << 23);
            logits[(size_t)blockIdx.y * stride + n_first + open[first + threadIdx.x]] = sum * inverse;
        }
        __syncthreads();
    }
}

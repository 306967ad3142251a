// A row of activations as eight columns of single bits with weights 1, 2, 4, .., -128: a warp has STEPS units of 256
// columns, two I2_S blocks each. Words of codes are rows of bits without unpacking, and their upper bits count twice,
// so that the sum of a block in lane (g, t) is the exact sum over bits 2 t and 2 t + 1; four lanes together have the
// whole sum. Scales are per 128 columns or per row.
#include "tensor.cuh"

#define BIAS 12582912.0f  // 1.5 * 2^23: its bits plus an integer are the bits of BIAS plus the integer
#define BIAS_BITS 0x4b400000

// Returns bit g of each byte of four words of activations, one per plane, at the positions of the lower bits of a
// word's codes.
__device__ inline u32 bit_of(const u32 (&plane)[4], u32 g) {
    return (rotated_right(plane[0], g - 6) & 0x40404040u) | (rotated_right(plane[1], g - 4) & 0x10101010u) |
           (rotated_right(plane[2], g - 2) & 0x04040404u) | (rotated_right(plane[3], g) & 0x01010101u);
}

struct OneRow {
    u32 bits[2 * STEPS][2];
    float factor[2 * STEPS];
    int start[2 * STEPS];  // BIAS less the sum of the activations, since codes are one too large

    // q: words of the row; scale: one per 32 columns, or null. Neither is read past `blocks` blocks.
    __device__ void load(const u32* q, const float* scale, u32 blocks) {
        u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, mine[2 * STEPS];
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            u32 block = block_of(i);
            mine[i] = block < blocks ? q[32 * block + lane] : 0;
            factor[i] = !scale ? 1.0f : block < blocks ? scale[4 * block] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            const u32 ones[4] = {0x55555555u, 0x55555555u, 0x55555555u, 0x55555555u};
            int sums[4] = {0, 0, 0, 0};
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 plane[4];
#pragma unroll
                for (int s = 0; s < 4; s++) plane[s] = shuffle_from(mine[i], 8 * s + 4 * half + t);
                bits[i][half] = bit_of(plane, g);
            }
            mma_bits(sums, ones, bits[i][0], bits[i][1]);
            start[i] = BIAS_BITS - sums[0] - odd() * sums[1];
            factor[i] *= (float)(1u << 2 * t);
        }
    }

    // Returns block 0 or 1 of this warp's unit i / 2, counted from the row's first.
    __device__ static u32 block_of(int i) { return 2 * (i / 2 * WARPS + threadIdx.x / 32) + i % 2; }
    // Returns the weight of the second of a lane's columns relative to the first.
    __device__ static int odd() { return threadIdx.x % 4 == 3 ? -2 : 2; }

    // sum[r] += this lane's share of block i in row g + 8 r, whose weights have scale[r]. codes: an A fragment of
    // single bits.
    __device__ void add(float (&sum)[2], int i, const u32 (&codes)[4], const float (&scale)[2]) const {
        int lower[4] = {0, 0, 0, 0}, upper[4] = {0, 0, 0, 0};
        mma_bits(lower, codes, bits[i][0], bits[i][1]);
        mma_bits(upper, codes, bits[i][0] << 1, bits[i][1] << 1);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int first = lower[2 * r] + 2 * upper[2 * r] + start[i], second = lower[2 * r + 1] + 2 * upper[2 * r + 1];
            sum[r] += (__uint_as_float((u32)(first + odd() * second)) - BIAS) * (scale[r] * factor[i]);
        }
    }

    // partial[16]: the warp's share of the rows; each lane has its own.
    __device__ static void leave(const float (&sum)[2], float* partial) {
        u32 t = threadIdx.x % 4;
        float other = shuffle_xor(t % 2 ? sum[0] : sum[1], 1);  // then a lane has one row, and its neighbour the other
        float v = (t % 2 ? sum[1] : sum[0]) + other;
        v += shuffle_xor(v, 2);
        partial[t % 2 * 8 + threadIdx.x % 32 / 4] = v;  // lanes t and t + 2 hold the same value
    }
};

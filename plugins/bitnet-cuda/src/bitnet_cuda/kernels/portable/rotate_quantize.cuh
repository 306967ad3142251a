// H(signs * v) for each HADAMARD columns of a row (hadamard.cuh), then int8 codes with a scale for each ABLOCK columns
// (codes.cuh), written with their sum for each 32 columns. A block computes TILE_N transforms of a row in sequence; a
// thread has four columns of each.
#include "hadamard.cuh"
#include "codes.cuh"

struct Rotated {
    const float* signs;
    u32* q;
    float* scale;
    int* qsum;
    u32 row, width;
    Floats sign;  // of the thread's first columns

    __device__ Rotated(const float* signs, u32* q, float* scale, int* qsum, u32 row, u32 width)
        : signs(signs), q(q), scale(scale), qsum(qsum), row(row), width(width), sign(at(signs)) {}
    // Loads the signs of the thread's first columns. No kernel writes them, so this precedes the wait for the preceding
    // kernels.
    __device__ Floats at(const float* constant) const { return *(const Floats*)(constant + min(first(), width - 4)); }
    __device__ static u32 first() { return blockIdx.x * TILE_N * HADAMARD + 4 * threadIdx.x; }

    // Calls values(column, v) for v[4] of each transform.
    template <class F>
    __device__ void each(F values) const {
        __shared__ Floats exchange[HADAMARD_WARPS * 32];
#pragma unroll 1
        for (u32 i = 0; i < TILE_N; i++) {
            u32 column = first() + i * HADAMARD;
            if (column >= width) return;  // uniform over the block
            float v[4];
            values(column, v);
            if (i) __syncthreads();
            Floats own = sign;  // no ?:, since its pointers would keep `sign` in scratch memory on AMD GPUs
            if (i) own = *(const Floats*)(signs + column);
            write(column, v, own, exchange);
        }
    }
    __device__ void write(u32 column, float (&v)[4], const Floats& sign, Floats* exchange) const {
        v[0] *= sign.x, v[1] *= sign.y, v[2] *= sign.z, v[3] *= sign.w;
        hadamard(v, exchange);
        u32 largest = neighbours_max_bits<ABLOCK / 4>(largest_bits(v));
        bool bad = largest >= 0x7f800000u;
        Scaling of = scaling_of(largest, 1.0f);
        int total = 0;
        u32 packed = four_codes(v, bad ? 0.0f : of.factor, total);
        for (int d = 1; d < 8; d *= 2) total += shuffle_xor(total, d);
        size_t word = ((size_t)row * width + column) / 4;
        q[word] = packed;
        if (word % 8) return;
        scale[word / 8] = bad ? quiet_nan() : of.scale;
        qsum[word / 8] = total;
    }
};

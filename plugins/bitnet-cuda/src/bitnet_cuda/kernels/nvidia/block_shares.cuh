// What the kernels of block_rows.cuh and block_tiles.cuh share: weight rows in PIECES of 16, of which a warp has 256
// columns in a step, and the order of sums over the warps.
#include "tensor.cuh"
#include "regrouped.cuh"
#ifndef JOINED
#define JOINED 0
#endif
#ifndef NORMED
#define NORMED 0
#endif
#include "joined_norm.cuh"
#if NORMED
#define SQUARES_OF_Q , const float *q_squares
#define SQUARES q_squares
#else
#define SQUARES_OF_Q
#define SQUARES nullptr
#endif

#define WARPS (GROUP / 32)
#define BLOCKS (2 * WARPS * STEPS * SECTIONS)  // column blocks of a thread block
#define PITCH ((BLOCKS + 7) / 8 * 8 + 4)      // floats between the scales of weight rows in shared memory, against bank conflicts
#define BIAS 12582912.0f                      // 1.5 * 2^23: its bits plus an integer are the bits of BIAS plus the integer
#define BIAS_BITS 0x4b400000

struct alignas(8) Pair {
    u32 a, b;
};
struct alignas(8) Two {
    float a, b;
};
struct alignas(16) Integers {
    int x, y, z, w;
};

// The column blocks of this warp in a step: block() and the next one, of `all`.
struct Columns {
    u32 all, first, step;  // first: the thread block's

    __device__ Columns(u32 width, u32 step) : all(width / 128), first(blockIdx.z * BLOCKS), step(step) {}
    __device__ u32 own() const { return 2 * WARPS * step + threadIdx.x / 32 * 2; }
    __device__ u32 block() const { return first + own(); }
};

// The columns of this warp's activations of a step in shared memory: rows of 256 bytes, padded by 32 against bank conflicts, then
// 32 bytes per row of scales and of sums of codes. They are copied in whole lines, since every block reads them at the
// same time: loads of each lane's own bytes took longer.
#define TOKEN_FLOATS (8 * (72 + 8 + 8))
struct Tokens {
    char *q, *scale, *qsum;
#if NORMED
    const Inverses& inverses;
    u32 first;  // row among the block's

    __device__ Floats scales(u32 token, u32 b) const { return inverses.scales(((const Floats*)scale)[2 * token + b], first + token); }
    __device__ Tokens(void* memory, const Inverses& inverses, u32 first = 0)
        : q((char*)memory), scale(q + 8 * 288), qsum(scale + 8 * 32), inverses(inverses), first(first) {}
#else
    __device__ Floats scales(u32 token, u32 b) const { return ((const Floats*)scale)[2 * token + b]; }
    __device__ explicit Tokens(void* memory) : q((char*)memory), scale(q + 8 * 288), qsum(scale + 8 * 32) {}
#endif
    // Starts the copies of up to eight of `rows` rows.
    __device__ void start(const Columns& columns, const char* codes, const char* scales, const char* sums, u32 rows) const {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 i = lane; i < 128; i += 32) {
            u32 token = i / 16, block = columns.block() + i % 16 / 8;
            if (token < rows && block < columns.all)
                copy_async(q + token * 288 + i % 16 * 16, codes + ((size_t)token * columns.all + block) * 128 + i % 8 * 16);
        }
        u32 token = lane % 16 / 2, block = columns.block() + lane % 2;
        size_t from = ((size_t)token * columns.all + block) * 16;
        if (token < rows && block < columns.all) copy_async((lane < 16 ? scale : qsum) + lane % 16 * 16, (lane < 16 ? scales : sums) + from);
    }
};

// Returns less the sum of a block's activations, since codes are one too large: f, sum: of its planes.
__device__ inline float minus_of(const Floats& f, const Integers& sum) {
    float total = f.x * (float)sum.x;
    total = fmaf(f.y, (float)sum.y, total);
    total = fmaf(f.z, (float)sum.z, total);
    return -fmaf(f.w, (float)sum.w, total);
}

// Rows g and g + 8 of a piece. Columns past the last column block are multiplied by activations of 0.
struct Piece {
    Words codes[2];

    // row_of(j): the weight row of row j of the block.
    template <class RowOf>
    __device__ void load(const Columns& columns, const Words* w, u32 p, RowOf row_of) {
        u32 half = min(2 * columns.block() + threadIdx.x % 4, 2 * columns.all - 1);  // of the row's I2_S blocks
#pragma unroll
        for (int r = 0; r < 2; r++)
            codes[r] = load_streaming(w + (size_t)row_of(16 * p + 8 * r + threadIdx.x % 32 / 4) * (2 * columns.all) + half);
    }
};

// Starts the copies of the scales of the block's weight rows, for its columns.
template <class RowOf>
__device__ inline void load_scales(const Columns& columns, float* to, const float* wscale, u32 width, RowOf row_of) {
    u32 of_row = (width + BLOCK - 1) / BLOCK;
    for (u32 n = threadIdx.x / 32; n < 16 * PIECES; n += WARPS)
        for (u32 b = threadIdx.x % 32; b < BLOCKS; b += 32)
            copy_async_word(to + n * PITCH + b, wscale + (size_t)row_of(n) * of_row + min(columns.first + b, columns.all - 1) * 128 / BLOCK);
    copy_group();
}
// Returns sum i of the block's: that of row `row` and token `token`.
struct Place {
    u32 row, token;

    __device__ Place(u32 i) : row(i / 128 * 16 + i % 4 / 2 * 8 + i % 128 / 16), token(i / 4 % 4 * 2 + i % 2) {}
};

__device__ inline float sum_of_warps(const float* partial, u32 i) {
    float value = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) value += partial[w * ROOM + i];
    return value;
}

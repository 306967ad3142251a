// One to eight rows of activations times weights with block scales, on tensor cores: out[n, t] = sum over blocks b of
// 128 columns of wscale[n, 128 b / BLOCK] * (sum over planes s of scale[t, 4 b + s] * (sum of code[n, k] * q[t, k] over
// the plane's 32 columns, exact) - sum over s of scale[t, 4 b + s] * qsum[t, 4 b + s]).
// Weight rows are processed in PIECES of 16, DEPTH of them in flight to registers before the preceding kernels have
// finished. Warps share the columns, STEPS units of 256 each, and SPLITS blocks share them too: the order of an output's sum
// does not depend on the number of rows of activations.
// A fragment is a word and a mask, so planes keep their factors 64, 16, 4 and 1; sums start at the bits of BIAS, so
// that a subtraction replaces a conversion, which has half its rate.
#include "tensor.cuh"
#include "regrouped.cuh"

#define WARPS (GROUP / 32)
#define SUMS (PIECES * 128)                   // sums of a warp, and of a block
#define BLOCKS (2 * STEPS * WARPS)             // column blocks of a thread block
#define PITCH ((BLOCKS + 7) / 8 * 8 + 4)   // floats between the scales of weight rows in shared memory, against bank conflicts
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

// The column blocks of this warp: block(step) and the next one of each step, of `all`.
struct Columns {
    u32 all, first;  // first: the thread block's

    __device__ explicit Columns(u32 width) : all(width / 128), first(blockIdx.z * BLOCKS) {}
    __device__ u32 block(u32 step) const { return first + (threadIdx.x / 32 * STEPS + step) * 2; }
};

#define TOKEN_ROOM (8 * (72 + 8 + 8))  // words of a step's Tokens

// The columns of a step of this warp's activations in shared memory: rows of 256 bytes, padded by 32 against bank conflicts, then
// 32 bytes per row of scales and of sums of codes. They are copied in whole lines, since every block reads them at the
// same time: loads of each lane's own bytes took longer.
struct Tokens {
    char *q, *scale, *qsum;

    __device__ explicit Tokens(void* memory) : q((char*)memory), scale(q + 8 * 288), qsum(scale + 8 * 32) {}
    __device__ void copy(const Columns& columns, u32 step, const char* codes, const char* scales, const char* sums, u32 rows) const {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (u32 i = lane; i < 128; i += 32) {
            u32 token = i / 16, block = columns.block(step) + i % 16 / 8;
            if (token < rows && block < columns.all)
                copy_async(q + token * 288 + i % 16 * 16, codes + ((size_t)token * columns.all + block) * 128 + i % 8 * 16);
        }
        u32 token = lane % 16 / 2, block = columns.block(step) + lane % 2;
        size_t from = ((size_t)token * columns.all + block) * 16;
        if (token < rows && block < columns.all) copy_async((lane < 16 ? scale : qsum) + lane % 16 * 16, (lane < 16 ? scales : sums) + from);
    }
};

// This lane's activations of a step: columns of token lane / 4 to multiply, scales of tokens 2 (lane % 4) and the next.
struct Activations {
    Pair q[2][4];
    float factor[2][4][2];  // of block, plane and token
    float minus[2][2];      // sums of activations, since codes are one too large

    __device__ void load(const Columns& columns, u32 step, const Tokens& tokens, u32 rows) {
        u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int b = 0; b < 2; b++) {
            bool there = columns.block(step) + b < columns.all;
#pragma unroll
            for (int s = 0; s < 4; s++)
                q[b][s] = there && g < rows ? ((const Pair*)(tokens.q + g * 288))[16 * b + 4 * s + t % 2 * 2 + t / 2] : Pair{0, 0};
#pragma unroll
            for (int e = 0; e < 2; e++) {
                u32 token = 2 * t + e;
                bool used = there && token < rows;
                Floats f = used ? ((const Floats*)tokens.scale)[2 * token + b] : Floats{0.0f, 0.0f, 0.0f, 0.0f};
                Integers sum = used ? ((const Integers*)tokens.qsum)[2 * token + b] : Integers{0, 0, 0, 0};
                float total = f.x * (float)sum.x;
                total = fmaf(f.y, (float)sum.y, total);
                total = fmaf(f.z, (float)sum.z, total);
                minus[b][e] = -fmaf(f.w, (float)sum.w, total);
                factor[b][0][e] = f.x * (1.0f / 64.0f), factor[b][1][e] = f.y * (1.0f / 16.0f);
                factor[b][2][e] = f.z * (1.0f / 4.0f), factor[b][3][e] = f.w;
            }
        }
    }
};

// Rows g and g + 8 of a piece. Columns past the last column block are multiplied by activations of 0.
struct Piece {
    Words codes[STEPS][2];

    // row_of(j): the weight row of row j of the block.
    template <class RowOf>
    __device__ void load(const Columns& columns, const Words* w, u32 p, RowOf row_of) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            u32 half = min(2 * columns.block(step) + threadIdx.x % 4, 2 * columns.all - 1);  // of the row's I2_S blocks
#pragma unroll
            for (int r = 0; r < 2; r++)
                codes[step][r] = load_streaming(w + (size_t)row_of(16 * p + 8 * r + threadIdx.x % 32 / 4) * (2 * columns.all) + half);
        }
    }
    // Adds the warp's share of the piece: rows g and g + 8, tokens 2 t and 2 t + 1. weights: in shared memory, scales
    // of the piece's rows from the warp's first block on.
    __device__ Floats multiply(const Activations (&x)[STEPS], const float* weights) const {
        float value[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int step = 0; step < STEPS; step++) add(value, step, x[step], weights + 2 * step);
        return {value[0], value[1], value[2], value[3]};
    }
    __device__ void add(float (&value)[4], int step, const Activations& x, const float* weights) const {
        Words low = regrouped(codes[step][0]), high = regrouped(codes[step][1]);
        u32 g = threadIdx.x % 32 / 4;
        Two of_low = *(const Two*)(weights + g * PITCH), of_high = *(const Two*)(weights + (g + 8) * PITCH);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            float sum[4] = {x.minus[b][0], x.minus[b][1], x.minus[b][0], x.minus[b][1]};
#pragma unroll
            for (int s = 0; s < 4; s++) {
                const u32 mask = 0x03030303u << (6 - 2 * s);
                u32 a[4] = {(b ? low.z : low.x) & mask, (b ? high.z : high.x) & mask, (b ? low.w : low.y) & mask, (b ? high.w : high.y) & mask};
                int c[4];
                mma_from(BIAS_BITS, c, a, x.q[b][s].a, x.q[b][s].b);
#pragma unroll
                for (int r = 0; r < 4; r++) sum[r] = fmaf(__uint_as_float(c[r]) - BIAS, x.factor[b][s][r % 2], sum[r]);
            }
#pragma unroll
            for (int r = 0; r < 4; r++) value[r] = fmaf(b ? (r / 2 ? of_high.b : of_low.b) : (r / 2 ? of_high.a : of_low.a), sum[r], value[r]);
        }
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

// Computes the shares of all warps in the sums of the block's rows, partial[WARPS][ROOM], in the place of each warp's
// activations; scales: PITCH per row. Both are in shared memory. ready(): called once the preceding kernels have
// finished.
template <class RowOf, class Ready>
__device__ inline void multiply_rows(float* partial, float* scales, const Words* w, const float* wscale, const void* q, const float* scale,
                                     const int* qsum, u32 rows, u32 width, RowOf row_of, Ready ready) {
    Columns columns(width);
    Piece pieces[DEPTH];
    let_next_start();
    load_scales(columns, scales, wscale, width, row_of);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) pieces[d].load(columns, w, d, row_of);
    wait_for_previous();
    float* own = partial + threadIdx.x / 32 * ROOM;
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        Tokens(own + step * TOKEN_ROOM).copy(columns, step, (const char*)q, (const char*)scale, (const char*)qsum, rows);
    copy_group();
    ready();
    copy_wait<1>();
    __syncthreads();
    copy_wait<0>();
    sync_warp();
    Activations x[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; step++) x[step].load(columns, step, Tokens(own + step * TOKEN_ROOM), rows);
    sync_warp();
    u32 warp = threadIdx.x / 32;
    Floats* to = (Floats*)own + threadIdx.x % 32;
#pragma unroll 1
    for (u32 p = 0; p < PIECES; p += DEPTH)
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) {
            if (PIECES % DEPTH && p + d >= PIECES) break;
            to[32 * (p + d)] = pieces[d].multiply(x, scales + 16 * PITCH * (p + d) + 2 * STEPS * warp);
            if (p + d + DEPTH < PIECES) pieces[d].load(columns, w, p + d + DEPTH, row_of);
        }
    __syncthreads();
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

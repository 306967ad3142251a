// One to eight rows of activations times weights with block scales, on tensor cores:
// out[n, t] = sum over blocks b of 128 columns of wscale[n, 128 b / BLOCK] * (sum over planes s of scale[t, 4 b + s] * (sum of code[n, k] * q[t, k],
// exact, over the plane's 32 columns) - sum over s of scale[t, 4 b + s] * qsum[t, 4 b + s]).
// The rows of weights pass by in PIECES of 16, DEPTH of them on their way to registers before the kernels ahead have ended. Warps share the columns,
// 256 each, and SPLITS blocks share them too: how an output is added up does not depend on the number of rows of activations.
// A fragment is a word and a mask, so that planes keep their factors 64, 16, 4 and 1; sums begin at the bits of BIAS, so that a subtraction takes
// the place of a conversion of half its rate.
#include "tensor.cuh"
#include "barrier.cuh"
#include "regrouped.cuh"

#define WARPS (GROUP / 32)
#define SUMS (PIECES * 128)                       // of a warp, and of a block
#define PITCH ((2 * WARPS + 7) / 8 * 8 + 4)       // scales of a row of weights in shared memory, against conflicts of banks
#define CODES (WARPS * 256 + 32)                  // bytes of a row of activations in shared memory, likewise
#define FACTORS (WARPS * 8 + 4)                   // its scales, and its sums of codes
#define BIAS 12582912.0f                          // 1.5 * 2^23: its bits, plus an integer, are those of the sum
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

// The column blocks of this warp: block() and the next one, of `all`.
struct Columns {
    u32 all, first, count;  // first, count: those of the thread block

    __device__ Columns(u32 width) : all(width / 128), first(blockIdx.z * (2 * WARPS)), count(min(2u * WARPS, all - min(all, first))) {}
    __device__ u32 block() const { return first + threadIdx.x / 32 * 2; }
};

// The block's columns of the activations, in shared memory.
struct Tokens {
    char* q;       // [8][CODES]
    float* scale;  // [8][FACTORS]
    int* qsum;     // [8][FACTORS]
    Barrier* come;

    __device__ Tokens(void* memory, Barrier* come) : q((char*)memory), scale((float*)(q + 8 * CODES)), qsum((int*)(scale + 8 * FACTORS)), come(come) {
        if (threadIdx.x) return;
        barrier_init(come, 1);
        show_barriers();
    }
    // A lane of the first warp asks for the codes, the scales or the sums of a row.
    __device__ void copy(const Columns& columns, const char* from, const float* scales, const int* sums, u32 rows) const {
        u32 token = threadIdx.x % 8;
        if (threadIdx.x >= 32 || columns.count == 0) return;
        if (threadIdx.x == 0) barrier_expect(come, rows * columns.count * 160);
        sync_warp();
        if (token >= rows) return;
        size_t at = (size_t)token * columns.all + columns.first;  // column block
        if (threadIdx.x / 8 == 0) copy_bulk(q + token * CODES, from + 128 * at, 128 * columns.count, come);
        if (threadIdx.x / 8 == 1) copy_bulk(scale + token * FACTORS, scales + 4 * at, 16 * columns.count, come);
        if (threadIdx.x / 8 == 2) copy_bulk(qsum + token * FACTORS, sums + 4 * at, 16 * columns.count, come);
    }
};

// What this lane has of the activations: columns of token lane / 4 to multiply, scales of tokens 2 (lane % 4) and the next.
struct Activations {
    Pair q[2][4];
    float factor[2][4][2];  // of block, plane and token
    float minus[2][2];      // the sums of activations, since codes are one too large

    __device__ void load(const Columns& columns, const Tokens& tokens, u32 rows) {
        u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int b = 0; b < 2; b++) {
            u32 own = threadIdx.x / 32 * 2 + b;  // of the thread block's column blocks
            bool there = own < columns.count;
#pragma unroll
            for (int s = 0; s < 4; s++)
                q[b][s] = there && g < rows ? ((const Pair*)(tokens.q + g * CODES))[own * 16 + 4 * s + t % 2 * 2 + t / 2] : Pair{0, 0};
#pragma unroll
            for (int e = 0; e < 2; e++) {
                u32 token = 2 * t + e;
                bool used = there && token < rows;
                Floats f = used ? ((const Floats*)(tokens.scale + token * FACTORS))[own] : Floats{0.0f, 0.0f, 0.0f, 0.0f};
                Integers sum = used ? ((const Integers*)(tokens.qsum + token * FACTORS))[own] : Integers{0, 0, 0, 0};
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

// Rows g and g + 8 of a piece. What warps have beyond the last column block is multiplied by activations of 0.
struct Piece {
    Words codes[2];

    // row_of(j): the matrix row of row j of the block's.
    template <class RowOf>
    __device__ void load(const Columns& columns, const Words* w, u32 p, RowOf row_of) {
        u32 half = min(2 * columns.block() + threadIdx.x % 4, 2 * columns.all - 1);  // of the row's I2_S blocks
#pragma unroll
        for (int r = 0; r < 2; r++)
            codes[r] = load_streaming(w + (size_t)row_of(16 * p + 8 * r + threadIdx.x % 32 / 4) * (2 * columns.all) + half);
    }
    // The warp's share of the piece: of rows g and g + 8, tokens 2 t and 2 t + 1. weights: shared, scales of the piece's rows from the warp's
    // first block on.
    __device__ Floats multiply(const Activations& x, const float* weights) const {
        Words low = regrouped(codes[0]), high = regrouped(codes[1]);
        u32 g = threadIdx.x % 32 / 4;
        Two of_low = *(const Two*)(weights + g * PITCH), of_high = *(const Two*)(weights + (g + 8) * PITCH);
        float value[4] = {0.0f, 0.0f, 0.0f, 0.0f};
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
        return {value[0], value[1], value[2], value[3]};
    }
};

// Asks for the scales of the block's rows of weights, of its columns.
template <class RowOf>
__device__ inline void load_scales(const Columns& columns, float* to, const float* wscale, u32 width, RowOf row_of) {
    u32 of_row = (width + BLOCK - 1) / BLOCK;
    for (u32 n = threadIdx.x / 32; n < 16 * PIECES; n += WARPS)
        for (u32 b = threadIdx.x % 32; b < 2 * WARPS; b += 32)
            copy_async_word(to + n * PITCH + b, wscale + (size_t)row_of(n) * of_row + min(columns.first + b, columns.all - 1) * 128 / BLOCK);
    copy_group();
}

// The shares of all warps in the sums of the block's rows, partial[WARPS][SUMS], where activations were before; scales: PITCH for each row. Both
// are shared memory. ready(): called once the kernels ahead have ended.
template <class RowOf, class Ready>
__device__ inline void multiply_rows(float* partial, float* scales, const Words* w, const float* wscale, const void* q, const float* scale,
                                     const int* qsum, u32 rows, u32 width, RowOf row_of, Ready ready) {
    __shared__ Barrier come;
    Columns columns(width);
    Piece pieces[DEPTH];
    let_next_start();
    Tokens tokens(partial, &come);
    load_scales(columns, scales, wscale, width, row_of);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) pieces[d].load(columns, w, d, row_of);
    __syncthreads();
    wait_for_previous();
    tokens.copy(columns, (const char*)q, scale, qsum, rows);
    ready();
    if (columns.count) barrier_wait(&come, 0);
    Activations x;
    x.load(columns, tokens, rows);
    copy_wait<0>();
    __syncthreads();
    u32 warp = threadIdx.x / 32;
    Floats* to = (Floats*)(partial + warp * SUMS) + threadIdx.x % 32;
#pragma unroll 1
    for (u32 p = 0; p < PIECES; p += DEPTH)
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) {
            if (PIECES % DEPTH && p + d >= PIECES) break;
            to[32 * (p + d)] = pieces[d].multiply(x, scales + 16 * PITCH * (p + d) + 2 * warp);
            if (p + d + DEPTH < PIECES) pieces[d].load(columns, w, p + d + DEPTH, row_of);
        }
    __syncthreads();
}

// Sum i of the block's: that of row `row` and token `token`.
struct Place {
    u32 row, token;

    __device__ Place(u32 i) : row(i / 128 * 16 + i % 4 / 2 * 8 + i % 128 / 16), token(i / 4 % 4 * 2 + i % 2) {}
};

__device__ inline float sum_of_warps(const float* partial, u32 i) {
    float value = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) value += partial[w * SUMS + i];
    return value;
}

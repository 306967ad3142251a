// matmul_ternary_glu for up to eight rows, on tensor cores: exact integers.
// m[t, n] = act(g) * u, g and u being matmul_ternary's of rows n and outs + n of w[2 outs, width / 4]; act = max(g, 0)^2 (ACT 0) or
// g / (1 + exp(-g)) (ACT 1). A block makes TILE_N outputs, from so many rows of each half. ROW_WARPS warps have 16 * M_TILES of them
// each; SHARES groups of such warps share the columns, in units of 256: group w takes units w, w + SHARES, ..., STEPS of them at most.
// All codes are under way, in registers, before the kernels ahead have ended, as in ternary_few.cuh; activations come once for a
// block, to shared memory, a step's columns of all tokens at a time.
// A lane's 16 bytes of codes are half of an I2_S block, and any order of columns will do. Planes are masked, never shifted, and keep
// their factors 64, 16, 4 and 1 in sums of their own. Every other 128 bytes of a token have their halves exchanged in shared memory, so
// that reads meet in no bank.
#include "prelude.cuh"
#include "tensor.cuh"
#include "gated.cuh"
#define WARPS (GROUP / 32)
#define ROW_WARPS (WARPS / SHARES)
#define ROWS (16 * M_TILES * ROW_WARPS)
#define COLUMN_WORDS (16 * SHARES)  // 16-byte words of a token in a step
#define SUM_PITCH (ROWS + 4)

// What a block shares beside activations and sums: scales and sums of codes of its tokens.
struct Shared {
    float scale[TILE_T];
    int qsum[TILE_T];
};

struct Few {
    Words* tokens;  // [TILE_T][pitch], later sums [SHARES][TILE_T][SUM_PITCH]
    u32 g, t, share, row, words, pitch, count;  // row: its warp's first; words: of a token

    __device__ Few(Words* pool, u32 width, u32 rows) : tokens(pool), count(rows) {
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        g = lane / 4, t = lane % 4, share = warp / ROW_WARPS, row = warp % ROW_WARPS * (16 * M_TILES);
        words = width / 16, pitch = words + 2;
    }
    __device__ static u32 place(u32 word) { return word ^ (word >> 1 & 4); }  // of a 16-byte word in its token's row
    __device__ u32 piece(int step) const { return (step * SHARES + share) * 4 + t; }

    // row_of(r): the weight row of row r of the block's.
    template <class RowOf>
    __device__ void load(Words (&codes)[STEPS][M_TILES][2], const Words* w, RowOf row_of) const {
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int j = 0; j < 2 * M_TILES; j++)
                codes[i][j / 2][j % 2] = piece(i) < words / 4
                                             ? load_streaming(w + (size_t)row_of(row + 8 * j + g) * (words / 4) + piece(i))
                                             : Words{0, 0, 0, 0};
    }
    // Asks for all activations, a group of copies for each step, scales and sums of codes with the last.
    __device__ void copy(Shared& s, const Words* q, const float* scale, const int* qsum) const {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            for (u32 at = threadIdx.x; at < count * COLUMN_WORDS; at += GROUP) {
                u32 token = at / COLUMN_WORDS, word = i * COLUMN_WORDS + at % COLUMN_WORDS;
                if (word < words) copy_async(tokens + token * pitch + place(word), q + (size_t)token * words + word);
            }
            if (i == STEPS - 1 && threadIdx.x < count) {
                copy_async_word(s.scale + threadIdx.x, scale + threadIdx.x);
                copy_async_word(s.qsum + threadIdx.x, qsum + threadIdx.x);
            }
            copy_group();
        }
    }
    __device__ void multiply_step(int (&acc)[M_TILES][4][4], const Words (&codes)[M_TILES][2], int step) const {
        u32 at = min(piece(step), words / 4 - 1);  // codes of 0 for what is not there
#pragma unroll
        for (int s = 0; s < 4; s++) {
            Words b = tokens[g * pitch + place(at / 2 * 8 + 2 * s + at % 2)];
            const u32 mask = 0x03030303u << (6 - 2 * s);
#pragma unroll
            for (int j = 0; j < M_TILES; j++) {
                Words low = codes[j][0], high = codes[j][1];
                u32 even[4] = {low.x & mask, high.x & mask, low.y & mask, high.y & mask};
                u32 odd[4] = {low.z & mask, high.z & mask, low.w & mask, high.w & mask};
                mma(acc[j][s], even, b.x, b.y);
                mma(acc[j][s], odd, b.z, b.w);
            }
        }
    }
    // All sums, into shared memory.
    __device__ void multiply(const Words (&codes)[STEPS][M_TILES][2]) const {
        int acc[M_TILES][4][4] = {};
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            if (i + 1 == STEPS) copy_wait<0>();
            else if (i + 2 == STEPS) copy_wait<1>();
            else copy_wait<2>();
            __syncthreads();
            multiply_step(acc, codes[i], i);
        }
        __syncthreads();
        int* sums = (int*)tokens + share * (TILE_T * SUM_PITCH) + row + g;
#pragma unroll
        for (int i = 0; i < 4 * M_TILES; i++) {
            auto plane = [&](int s) { return acc[i / 4][s][i % 4] >> (6 - 2 * s); };
            sums[(2 * t + i % 2) * SUM_PITCH + 8 * (i / 2)] = plane(0) + plane(1) + plane(2) + plane(3);
        }
        __syncthreads();
    }
    // sum_k (code - 1) q of row r of the block's and a token.
    __device__ int sum(const Shared& s, u32 token, u32 r) const {
        int dot = -s.qsum[token];
#pragma unroll
        for (int i = 0; i < SHARES; i++) dot += ((const int*)tokens)[(i * TILE_T + token) * SUM_PITCH + r];
        return dot;
    }
};

KERNEL matmul_ternary_glu(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum, float* m,
                          u32 rows, u32 outs, u32 width) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Shared s;
    u32 n0 = blockIdx.x * TILE_N;
    Few few(pool, width, rows);
    let_next_start();
    Words codes[STEPS][M_TILES][2];
    few.load(codes, w, [=](u32 r) { return min(n0 + r % TILE_N, outs - 1) + r / TILE_N * outs; });
    u32 token = threadIdx.x / TILE_N, r = threadIdx.x % TILE_N, n = n0 + r;
    float gate_scale = wscale[min(n, outs - 1)], up_scale = wscale[outs + min(n, outs - 1)];
    wait_for_previous();
    few.copy(s, q, scale, qsum);
    few.multiply(codes);
    if (token >= rows || n >= outs) return;
    float gate = (float)few.sum(s, token, r) * s.scale[token] * gate_scale;
    float up = (float)few.sum(s, token, TILE_N + r) * s.scale[token] * up_scale;
    m[(size_t)token * outs + n] = gated(gate, up);
}

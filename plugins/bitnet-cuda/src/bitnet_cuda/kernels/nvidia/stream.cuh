// Ternary products of prompts on warpgroup tensor cores, in tiles that blocks take in turns (turns.cuh). One thread of
// the last warpgroup keeps bulk copies of STAGES column blocks in flight. A stage holds activations in the 128-byte
// swizzle that the tensor cores read, 2-bit weights in the 32-byte swizzle, and EXTRA 16-byte words of the kernel.
// A lane's OWN weight rows are neighbours, so that it writes their sums at once: the copy puts each 8 * OWN rows in the
// order of fragments. outs is a multiple of 8 * OWN, y_first and y_stride of OWN. PARTS: the parts of the weights,
// `outs` rows each; a tile has the same rows of each part.
#ifndef PARTS
#define PARTS 1
#endif
#define ROW_TILES (M_TILES / PARTS)
#define WARPGROUPS (GROUP / 128 - 1)  // multiplying warpgroups
#define SPAN_N (64 * ROW_TILES * WARPGROUPS)
#include "turns.cuh"
#define OWN (2 * ROW_TILES)
#define WEIGHTS (SPAN_T * 8)
#define FACTORS (WEIGHTS + PARTS * SPAN_N * 2)
#define STAGE (FACTORS + EXTRA)

struct alignas(4 * OWN) Outs {
    float v[OWN];
};

// One thread's copies of a column block; `more` bytes follow.
__device__ inline void copy_block(const Work& work, Words* stage, const TensorMap& weights, const TensorMap& tokens,
                                  u32 tile, u32 block, u32 more, Barrier* full, u32 outs) {
    barrier_expect(full, 16 * FACTORS + more);
    copy_box(stage, tokens, block * 128, work.first_t(tile), full);
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        copy_groups(stage + WEIGHTS + i * SPAN_N * 2, weights, block * 32, (i * outs + work.first_n(tile)) / (8 * OWN), full);
}

// y (+)= value(i, e): a lane's rows n.. of token first + 8 i + e.
template <class Value>
__device__ inline void store_outs(float* y, u32 y_stride, u32 outs, u32 rows, u32 n, u32 first, Value value) {
    if (n >= outs) return;
#pragma unroll
    for (int i = 0; i < SPAN_T / 8; i += 2) {  // the old values of several tokens are read at once
        Outs old[4];
#pragma unroll
        for (int e = 0; ADD && e < 4; e++) {
            u32 token = first + 8 * (i + e / 2) + e % 2;
            if (token < rows) old[e] = *(const Outs*)(y + (size_t)token * y_stride + n);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u32 token = first + 8 * (i + e / 2) + e % 2;
            Outs v = value(i + e / 2, e % 2);
#pragma unroll
            for (int r = 0; ADD && r < OWN; r++) v.v[r] = old[e].v[r] + v.v[r];
            if (token < rows) *(Outs*)(y + (size_t)token * y_stride + n) = v;
        }
    }
}

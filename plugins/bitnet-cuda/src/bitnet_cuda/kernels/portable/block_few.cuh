// Ternary products with block scales for one row of activations, with dot products of four bytes. A unit has 256
// columns, two I2_S blocks: lane (g, t) loads half t % 2 of block t / 2. An activation block is one plane of one I2_S
// block, so the sum of each plane is scaled separately.
#include "few_codes.cuh"
#include "few_scales.cuh"

#define HALVES (BLOCK == 64 ? 2 : 1)  // weight scales of a row for 128 columns

struct OneRow {
    float scale[STEPS][2 * TILES][HALVES];

    template <class RowOf>
    __device__ void load(const float* wscale, u32 width, RowOf row_of) {
        u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int j = 0; j < 2 * TILES * HALVES; j++) {
                u32 row = j / HALVES, k = (unit_block(i) + t / 2) * 128 + j % HALVES * 64;
                scale[i][row][j % HALVES] = 8 * row < ROWS ? weight_scale(wscale, row_of(8 * row + g), k, width) : 0.0f;
            }
    }

    // partial[16 * TILES] of this warp. q: in shared memory, from column 0 on; factors: in shared memory, one per 32
    // columns, or null.
    __device__ void multiply(const Codes& codes, const Words* q, const float* factors, float* partial) const {
        u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        float sum[2 * TILES];
#pragma unroll
        for (int j = 0; j < 2 * TILES; j++) sum[j] = 0.0f;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            u32 block = unit_block(i) + t / 2;
#pragma unroll
            for (int s = 0; s < 4; s++) {
                Words in = q[block * 8 + 2 * s + t % 2];
                float factor = factors ? factors[block * 4 + s] : 1.0f;
#pragma unroll
                for (int j = 0; j < 2 * TILES; j++) {
                    Words c = codes.of[i][j / 2][j % 2];
                    int dot = dot4(signs(c.x, s), in.x, dot4(signs(c.y, s), in.y, 0));
                    dot = dot4(signs(c.z, s), in.z, dot4(signs(c.w, s), in.w, dot));
                    sum[j] += scale[i][j][s * HALVES / 4] * factor * (float)dot;
                }
            }
        }
#pragma unroll
        for (int j = 0; j < 2 * TILES; j++) {
            float v = sum[j];
            v += shuffle_xor(v, 1);
            v += shuffle_xor(v, 2);
            if (t == 0) partial[8 * j + g] = v;
        }
    }
};

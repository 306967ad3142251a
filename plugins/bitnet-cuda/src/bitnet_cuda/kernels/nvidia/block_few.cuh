// Ternary products with block scales for few rows on tensor cores; weights are read as in ternary_few.cuh, 16 bytes a lane:
// of a unit of 256 columns, two I2_S blocks, lane (g, t) has half t % 2 of block t / 2. An activation block is one plane of
// one I2_S block, so sums have to be kept apart by plane and block before they are scaled.
#include "ternary_few.cuh"
#include "few_scales.cuh"

__device__ inline void fragment(u32* a, Words low, Words high, int s, bool second) {
    a[0] = signs(second ? low.z : low.x, s), a[1] = signs(second ? high.z : high.x, s);
    a[2] = signs(second ? low.w : low.y, s), a[3] = signs(second ? high.w : high.y, s);
}

// One row of activations: the eight columns of a product are the planes of the unit's two blocks, so that eight sums of a
// matrix row come out apart, two of them, of the same 64 columns, in each of the four lanes that share the row.
struct OneRow {
    float scale[STEPS][TILES][2];

    template <class RowOf>
    __device__ void load(const float* wscale, u32 width, RowOf row_of) {
        u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int j = 0; j < 2 * TILES; j++)
                scale[i][j / 2][j % 2] =
                    8 * j < ROWS ? weight_scale(wscale, row_of(8 * j + g), unit_block(i) * 128 + t * 64, width) : 0.0f;
    }

    // partial[16 * TILES] of this warp. q: shared, from column 0 on; factors: shared, of each 32 columns, or null.
    __device__ void multiply(const Codes& codes, const Words* q, const float* factors, float* partial) const {
        u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        float sum[TILES][2];
#pragma unroll
        for (int j = 0; j < 2 * TILES; j++) sum[j / 2][j % 2] = 0.0f;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            u32 block = unit_block(i);
            Words mine = g / 4 == t / 2 ? q[(block + t / 2) * 8 + g % 4 * 2 + t % 2] : Words{0, 0, 0, 0};
            float f0 = factors ? factors[block * 4 + 2 * t] : 1.0f, f1 = factors ? factors[block * 4 + 2 * t + 1] : 1.0f;
            int acc[TILES][2][4];
#pragma unroll
            for (int j = 0; j < 8 * TILES; j++) acc[j / 8][j / 4 % 2][j % 4] = 0;
#pragma unroll
            for (int s = 0; s < 4; s++) {
                Words b = g % 4 == s ? mine : Words{0, 0, 0, 0};
#pragma unroll
                for (int j = 0; j < TILES; j++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        u32 a[4];
                        fragment(a, codes.of[i][j][0], codes.of[i][j][1], s, half);
                        mma_signed(acc[j][half], a, half ? b.z : b.x, half ? b.w : b.y);
                    }
            }
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float first = (float)(acc[j][0][2 * r] + acc[j][1][2 * r]);
                    float second = (float)(acc[j][0][2 * r + 1] + acc[j][1][2 * r + 1]);
                    sum[j][r] += scale[i][j][r] * (first * f0 + second * f1);
                }
        }
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float v = sum[j][r];
                v += shuffle_xor(v, 1);
                v += shuffle_xor(v, 2);
                if (t == 0) partial[16 * j + 8 * r + g] = v;
            }
    }
};

// Of the two blocks that lanes t and t ^ 2 have half of each, bytes 16 (t % 2) + 8 (t / 2) and on of the first in x, y and of
// the second in z, w: then a fragment has the columns of one block alone.
__device__ inline Words regrouped(Words v) {
    bool second = threadIdx.x % 4 >= 2;
    u32 a = shuffle_xor(second ? v.x : v.z, 2), b = shuffle_xor(second ? v.y : v.w, 2);
    return second ? Words{a, b, v.z, v.w} : Words{v.x, v.y, a, b};
}

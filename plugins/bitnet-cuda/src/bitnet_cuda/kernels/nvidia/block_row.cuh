// One row of activations times weights with block scales, on tensor cores. Weight rows are processed in pieces of 16,
// DEPTH of them in flight to registers; warps share the columns, 256 at a time as in few_codes.cuh, STEPS times each.
// The eight columns of a product are the planes of the two I2_S blocks of a warp's 256 columns, so that a weight row
// has eight separate sums, two of them, of the same 64 columns, in each of the four lanes that share the row. Planes
// keep their factors 64, 16, 4 and 1 (so that a fragment is a word and a mask), and sums start at BIAS less the sum of
// the activations.
#include "tensor.cuh"

#define WARPS (GROUP / 32)
#define PIECES (ROWS / 16)             // an even number
#define DEPTH (STEPS == 1 ? 2 : 1)     // pieces in flight
#define RESIDENT (STEPS == 1 ? 2 : 1)  // blocks that fit on a multiprocessor
#define WIDTH ((COLUMNS + 127) / 128 * 128)
#define SCALES ((WIDTH + BLOCK - 1) / BLOCK)  // scales of a weight row
#define BIAS 12582912.0f  // 1.5 * 2^23: its bits plus an integer are the bits of BIAS plus the integer
#define BIAS_BITS 0x4b400000

// Returns the first block of 128 columns of this warp's unit i.
__device__ inline u32 unit_block(int i) { return 2 * (i * WARPS + threadIdx.x / 32); }

// Rows g and g + 8 of a piece. Columns past WIDTH are multiplied by activations of 0.
struct Piece {
    Words codes[STEPS][2];
    float scale[STEPS][2];

    // row_of(j): the weight row of row j of the block.
    template <class RowOf>
    __device__ void load(const Words* w, const float* wscale, u32 p, RowOf row_of) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            size_t row = row_of(16 * p + 8 * r + threadIdx.x % 32 / 4);
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                u32 half = unit_block(i) * 2 + threadIdx.x % 4;  // of the row's I2_S blocks
                if (STEPS * WARPS * 256 > WIDTH) half = min(half, WIDTH / 64 - 1u);
                codes[i][r] = load_streaming(w + row * (WIDTH / 64) + half);
                scale[i][r] = wscale[row * SCALES + half * 64 / BLOCK];
            }
        }
    }
};

struct OneRow {
    Words mine[STEPS];
    float factor[STEPS][2];
    int start[STEPS][2];

    // q: in shared memory, from column 0 on; factors: in shared memory, one per 32 columns, or null.
    __device__ void load(const Words* q, const float* factors) {
        u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            u32 block = unit_block(i), minus[4] = {~0u, ~0u, ~0u, ~0u};
            mine[i] = g / 4 == t / 2 ? q[(block + t / 2) * 8 + g % 4 * 2 + t % 2] : Words{0, 0, 0, 0};
            int sums[4] = {0, 0, 0, 0};
            mma_signed(sums, minus, mine[i].x, mine[i].y);
            mma_signed(sums, minus, mine[i].z, mine[i].w);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int shift = 6 - (int)t % 2 * 4 - 2 * e;  // of plane 2t % 4 + e
                start[i][e] = BIAS_BITS + sums[e] * (1 << shift);
                factor[i][e] = (factors ? factors[block * 4 + 2 * t + e] : 1.0f) * (1.0f / (1 << shift));
            }
        }
    }

    // partial[16]: the warp's share of the piece's rows.
    __device__ void multiply(const Piece& piece, float* partial) const {
        u32 t = threadIdx.x % 4;
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            int acc[4][4];  // of each plane; a lane's two columns are those of planes 0 and 1, or of 2 and 3
            Words low = piece.codes[i][0], high = piece.codes[i][1];
#pragma unroll
            for (int s = 0; s < 4; s++) {
                const u32 mask = 0x03030303u << (6 - 2 * s);
                u32 first[4] = {low.x & mask, high.x & mask, low.y & mask, high.y & mask};
                u32 second[4] = {low.z & mask, high.z & mask, low.w & mask, high.w & mask};
#pragma unroll
                for (int r = 0; r < 4; r++) acc[s][r] = start[i][r % 2];
                mma(acc[s], first, mine[i].x, mine[i].y);
                mma(acc[s], second, mine[i].z, mine[i].w);
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float even = __uint_as_float(t % 2 ? acc[2][2 * r] : acc[0][2 * r]) - BIAS;
                float odd = __uint_as_float(t % 2 ? acc[3][2 * r + 1] : acc[1][2 * r + 1]) - BIAS;
                sum[r] += piece.scale[i][r] * (even * factor[i][0] + odd * factor[i][1]);
            }
        }
        float other = shuffle_xor(t % 2 ? sum[0] : sum[1], 1);  // then a lane has one row, and its neighbour the other
        float v = (t % 2 ? sum[1] : sum[0]) + other;
        v += shuffle_xor(v, 2);
        partial[t % 2 * 8 + threadIdx.x % 32 / 4] = v;  // lanes t and t + 2 hold the same value
    }
};

// partial[WARPS][ROWS]; ready(): called while the first pieces are in flight; prepares q and factors.
template <class RowOf, class Ready>
__device__ inline void multiply_rows(const Words* w, const float* wscale, float (*partial)[ROWS], const Words* q,
                                     const float* factors, RowOf row_of, Ready ready) {
    Piece pieces[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) pieces[d].load(w, wscale, d, row_of);
    ready();
    OneRow product;
    product.load(q, factors);
    float* to = partial[threadIdx.x / 32];
#pragma unroll 1
    for (u32 p = 0; p < PIECES; p += DEPTH, to += 16 * DEPTH)
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            product.multiply(pieces[d], to + 16 * d);
            if (p + DEPTH < PIECES) pieces[d].load(w, wscale, p + d + DEPTH, row_of);
        }
    __syncthreads();
}

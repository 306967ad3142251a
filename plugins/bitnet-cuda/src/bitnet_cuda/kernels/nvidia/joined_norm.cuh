// The norm between two products, shared by both (joined_norms.py). The product before it (JOINED) stores its outputs'
// codes, the largest |y| of each 32 columns in the place of their scale, and their sum of squares; y = output * gamma.
// Codes do not depend on the root mean square, which cancels. The product after it (NORMED) computes the scales from
// these. Both together give the bits of rms_norm_quantize, except that a group whose largest |y| is below 1e-20 root
// mean squares has its own scale, not that floor.
#include "codes.cuh"

// Starts the copies of the gammas of COUNT outputs from n0 on, so that they are there when the sums are.
template <int COUNT>
__device__ inline void load_gammas(Floats* to, const float* gamma, u32 n0, u32 outs) {
    for (u32 i = threadIdx.x; i < COUNT / 4; i += GROUP) copy_async(to + i, gamma + min(n0 + 4 * i, outs - 4));
}

struct NormedCodes {
    u32* q;
    float* largest;
    int* qsum;
    float* squares;

    // Stores four neighbouring columns, word `word` of all rows' codes. Eight neighbouring lanes have the columns of a
    // scale; all lanes must call this.
    __device__ void store(size_t word, const Floats& values, const Floats& weights, bool used) const {
        float v[4] = {values.x, values.y, values.z, values.w};
        float sum = squares_of_group(v);
        v[0] *= weights.x, v[1] *= weights.y, v[2] *= weights.z, v[3] *= weights.w;
        u32 top = neighbours_max_bits<8>(largest_bits(v));
        bool bad = top >= 0x7f800000u;
        int total = 0;
        u32 packed = four_codes(v, bad ? 0.0f : 127.0f * reciprocal(fmaxf(__uint_as_float(top), 1e-30f)), total);
        for (int d = 1; d < 8; d *= 2) total += shuffle_xor(total, d);
        if (!used) return;
        q[word] = packed;
        if (word % 8) return;
        largest[word / 8] = __uint_as_float(top);
        qsum[word / 8] = total;
        squares[word / 8] = bad ? quiet_nan() : sum;
    }
    // Stores COUNT outputs of a block from n0 on, made[rows][COUNT + 4] in shared memory. gammas_of(k): of the outputs from
    // n0 + k on.
    template <int COUNT, class GammasOf>
    __device__ void store_all(const float* made, u32 rows, u32 n0, u32 outs, GammasOf gammas_of) const {
        const u32 fours = COUNT / 4, all = rows * fours;
        for (u32 first = threadIdx.x / 32 * 32; first < all; first += GROUP) {
            u32 own = first + threadIdx.x % 32, i = min(own, all - 1), token = i / fours, k = i % fours * 4;
            bool used = own < all && n0 + k < outs;
            auto&& weights = gammas_of(k);
            store(((size_t)token * outs + n0 + k) / 4, *(const Floats*)(made + token * (COUNT + 4) + k), weights, used);
        }
    }
};

#if NORMED
// 1 / root mean square of each row, NaN if the row has a value that is not finite.
struct Inverses {
    float of[TILE_T];

    // squares: [rows, width / 32]. All threads must call this before a barrier of the block.
    __device__ void find(const float* squares, u32 rows, u32 width) {
        for (u32 row = threadIdx.x / 32; row < rows; row += GROUP / 32) {
            float sum = squares_of_row(squares + row * (width / 32), width / 32);
            if (threadIdx.x % 32 == 0) of[row] = not_finite(sum) ? quiet_nan() : inverse_root(sum, 1.0f / (float)width, __uint_as_float(EPS_BITS));
        }
    }
    __device__ Floats scales(const Floats& largest, u32 row) const {
        float inverse = of[row];
        const float unit = 1.0f / 127.0f;
        return {largest.x * inverse * unit, largest.y * inverse * unit, largest.z * inverse * unit, largest.w * inverse * unit};
    }
};
#endif

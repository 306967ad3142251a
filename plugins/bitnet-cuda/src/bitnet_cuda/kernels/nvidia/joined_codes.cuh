// The second output of a kernel that is joined with the quantization after it (recording.py): codes, scales and sums as
// in rms_norm_quantize without a norm, with rows without padding. A NaN or Inf makes the scale of its own columns NaN,
// not all of the row's.
#include "codes.cuh"

struct Quantized {
    u32* q;
    float* scale;
    int* qsum;

    // Quantizes four neighbouring columns, word `word` of all rows' codes. ABLOCK / 4 neighbouring lanes have the
    // columns of a scale; all lanes must call this.
    __device__ void store(size_t word, const Floats& values, bool used) const {
        float v[4] = {values.x, values.y, values.z, values.w};
        u32 top = neighbours_max_bits<ABLOCK / 4>(largest_bits(v));
        bool bad = top >= 0x7f800000u;
        Scaling of = scaling_of(top, 1.0f);
        int total = 0;
        u32 packed = four_codes(v, bad ? 0.0f : of.factor, total);
        for (int d = 1; d < 8; d *= 2) total += shuffle_xor(total, d);
        if (!used) return;
        q[word] = packed;
        if (word % 8) return;
        scale[word / 8] = bad ? quiet_nan() : of.scale;
        qsum[word / 8] = total;
    }
};

#ifdef TILE_N
#define MADE (TILE_N + 4)  // floats between the outputs of tokens in shared memory, against bank conflicts

// Quantizes a block's TILE_N outputs from n0 on, made[rows][MADE].
__device__ inline void store_codes(const Quantized& to, const float* made, u32 rows, u32 n0, u32 outs) {
    const u32 fours = TILE_N / 4, all = rows * fours;
    for (u32 first = threadIdx.x / 32 * 32; first < all; first += GROUP) {
        u32 own = first + threadIdx.x % 32, i = min(own, all - 1), token = i / fours, k = i % fours * 4;
        to.store(((size_t)token * outs + n0 + k) / 4, *(const Floats*)(made + token * MADE + k), own < all && n0 + k < outs);
    }
}
#endif

// Norm and int8 quantization of one row per block. Raw::values(raw.load(k), v): the values of columns k .. k + 3 before
// the norm, 0 from `width` on. A thread loads all its values at once and keeps them in registers, so that the row is
// read once. gamma is loaded before the preceding kernels have finished.
// a = max(max|y|, floor), q = round_half_even(y * 127 / a), scale = a / 127, over the row (ABLOCK 0, floor 1e-5) or
// over each ABLOCK columns, which ABLOCK / 4 neighbouring threads hold (32 or 128, floor 1e-20). scale and qsum are
// then written for each 32 columns.
// As in norm_prologue.cuh the root mean square cancels in the codes unless the floor applies, so one block-wide
// reduction serves squares and largest value. LATE: the next kernel may start once the preceding kernels have finished,
// not earlier.
#include "codes.cuh"

#define GROUPED (NORM && ABLOCK == 32)  // the sum of squares is that of squares_of_group

template <class Raw>
__device__ inline void quantize_row(Raw raw, const float* gamma, u32* q, float* scale, int* qsum, u32 row, u32 width,
                                    u32 stride, float eps) {
    __shared__ float squares_of[GROUPED ? VECTORS * GROUP / 8 : GROUP / 32];
    __shared__ u32 largest_of[GROUP / 32];
    float v[VECTORS][4], squares = 0.0f;
    Four weights[VECTORS];
#pragma unroll
    for (int j = 0; NORM && j < VECTORS; j++) weights[j] = four_of(gamma, 4 * (threadIdx.x + j * GROUP), width);
    float share = 1.0f / (float)width;
    wait_for_previous();
    if (LATE) let_next_start();
    u32 largest = 0, words = stride / 4;
    typename Raw::Loaded loaded[VECTORS];
#pragma unroll
    for (int j = 0; j < VECTORS; j++) loaded[j] = raw.load(4 * (threadIdx.x + j * GROUP));
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        Raw::values(loaded[j], v[j]);
        if (GROUPED) {
            float group = squares_of_group(v[j]);
            if (threadIdx.x % 8 == 0) squares_of[(threadIdx.x + j * GROUP) / 8] = group;
        }
        for (int i = 0; i < 4; i++) {
            if (!GROUPED) squares += v[j][i] * v[j][i];
            if (NORM) v[j][i] *= weights[j].v[i];
        }
        largest = max(largest, largest_bits(v[j]));
    }
    largest = warp_max_bits(largest);
    if (NORM && !GROUPED) squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) {
        if (!GROUPED) squares_of[threadIdx.x / 32] = squares;
        largest_of[threadIdx.x / 32] = largest;
    }
    __syncthreads();
    squares = 0.0f;
#pragma unroll
    for (int i = 0; i < GROUP / 32; i++) {
        if (!GROUPED) squares += squares_of[i];
        largest = max(largest, largest_of[i]);
    }
    if (GROUPED) squares = squares_of_row(squares_of, VECTORS * GROUP / 8);
    bool bad = largest >= 0x7f800000u || (NORM && not_finite(squares));
    float inverse = NORM ? inverse_root(squares, share, eps) : 1.0f;
#if ABLOCK
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        u32 word = threadIdx.x + j * GROUP;
        Scaling of = scaling_of(neighbours_max_bits<ABLOCK / 4>(largest_bits(v[j])), inverse);
        int total = 0;
        u32 packed = four_codes(v[j], bad ? 0.0f : of.factor, total);
        for (int d = 1; d < 8; d *= 2) total += shuffle_xor(total, d);
        if (word >= words) continue;
        q[(size_t)row * words + word] = packed;
        if (word % 8) continue;
        size_t at = ((size_t)row * words + word) / 8;
        scale[at] = bad ? quiet_nan() : of.scale;
        qsum[at] = total;
    }
#else
    __shared__ int sums[GROUP / 32];
    Scaling of = scaling_of(largest, inverse);
    int total = 0;
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        u32 word = threadIdx.x + j * GROUP, packed = four_codes(v[j], bad ? 0.0f : of.factor, total);
        if (word < words) q[(size_t)row * words + word] = packed;
    }
    total = warp_sum_int(total);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x == 0) {
        total = 0;
#pragma unroll
        for (int i = 0; i < GROUP / 32; i++) total += sums[i];
        scale[row] = bad ? quiet_nan() : of.scale;
        qsum[row] = total;
    }
#endif
}

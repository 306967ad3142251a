// norm_matmul for five to eight rows of x[COLUMNS] on tensor cores (rows_few.cuh): y[t, y_first + n] (+)= (sum_k
// code[n,k] q[t,k] - sum_k q[t,k]) * scale[t] * wscale[n], with q and scale from x, normed (NORM 1) and quantized.
// Every block norms and quantizes all rows itself: a warp has 128 columns, a lane four of them in every row, so that
// rows are read once with one block-wide reduction before the codes are complete. Because of this reading a block
// should have as many outputs as leave enough blocks.
// Sums of squares have the order of quantize.cuh with four columns per thread. LATE: as there.
#include "prelude.cuh"
#include "tensor.cuh"
#define M_TILES 1
#define SHARES (GROUP / (2 * TILE_N))
#define STEPS ((COLUMNS + 256 * SHARES - 1) / (256 * SHARES))
#include "rows_few.cuh"

struct Norms {
    float squares[WARPS][8];
    u32 largest[WARPS][8];
    int sums[WARPS][8];  // sums of codes
};

__device__ inline Floats four_at(const float* p) {
    u32 k = 4 * threadIdx.x;
    if (COLUMNS % 4 == 0) return k < COLUMNS ? *(const Floats*)(p + k) : Floats{0.0f, 0.0f, 0.0f, 0.0f};
    return {k < COLUMNS ? p[k] : 0.0f, k + 1 < COLUMNS ? p[k + 1] : 0.0f, k + 2 < COLUMNS ? p[k + 2] : 0.0f,
            k + 3 < COLUMNS ? p[k + 3] : 0.0f};
}

// Adds eight rows over the warp in the order of warp_sum, with the rows divided among lanes. Returns the sum of row
// lane / 4.
__device__ inline float sum_of_row(float (&of)[8]) {
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
        bool upper = threadIdx.x & (half * 4);
#pragma unroll
        for (int i = 0; i < half; i++) {
            float sent = upper ? of[i] : of[i + half], kept = upper ? of[i + half] : of[i];
            of[i] = kept + shuffle_xor(sent, half * 4);
        }
    }
    of[0] += shuffle_xor(of[0], 2);
    return of[0] + shuffle_xor(of[0], 1);
}

// Writes the codes of all rows, their scales and sums to shared memory.
__device__ inline void quantize_rows(const Few& few, Shared& s, const float* x, Floats gamma, u32 rows, float eps) {
    __shared__ Norms norms;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = lane % 8;
    Floats v[8];
    float squares[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++) v[i] = four_at(x + (size_t)min(i, rows - 1) * COLUMNS);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        squares[i] = 0.0f;
        u32 bits = 0;
        float *of = &v[i].x, weights[4] = {gamma.x, gamma.y, gamma.z, gamma.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            squares[i] += of[j] * of[j];
            if (NORM) of[j] *= weights[j];
            bits = max(bits, __float_as_uint(of[j]) & 0x7fffffffu);
        }
        bits = warp_max_bits(bits);
        if (lane == 0) norms.largest[warp][i] = bits;
    }
    float sum = sum_of_row(squares);
    if (lane % 4 == 0) norms.squares[warp][lane / 4] = sum;
    __syncthreads();
    u32 bits = 0;
    float all = 0.0f;
#pragma unroll
    for (u32 i = 0; i < (WARPS + 3) / 4; i++) bits = max(bits, norms.largest[min(4 * i + lane / 8, (u32)WARPS - 1)][mine]);
    bits = max(bits, shuffle_xor(bits, 8));
    bits = max(bits, shuffle_xor(bits, 16));
#pragma unroll
    for (int i = 0; i < WARPS; i++) all += norms.squares[i][mine];
    bool bad = bits >= 0x7f800000u || (NORM && not_finite(all));
    float inverse = NORM ? rsqrtf(all * (1.0f / COLUMNS) + eps) : 1.0f, largest = __uint_as_float(bits), a = largest * inverse;
    float factor = bad ? 0.0f : a < 1e-5f ? 127.0f / 1e-5f * inverse : 127.0f * reciprocal(largest);
    if (threadIdx.x < 8) s.scale[mine] = bad ? quiet_nan() : fmaxf(a, 1e-5f) * (1.0f / 127.0f);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 codes = nearest_bytes(&v[i].x, shuffle_from(factor, i));
        if (8 * warp < few.words) ((u32*)few.at(i, 8 * warp + lane / 4))[lane % 4] = codes;  // the next token follows these words
        int total = warp_sum_int(dot4(0x01010101u, codes, 0));
        if (lane == 0) norms.sums[warp][i] = total;
    }
    __syncthreads();
    if (threadIdx.x >= 8) return;
    int total = 0;
    for (int i = 0; i < WARPS; i++) total += norms.sums[i][threadIdx.x];
    s.qsum[threadIdx.x] = total;
}

KERNEL norm_matmul(const float* x, const float* gamma, const Words* w, const float* wscale, float* y, u32 rows, u32 columns,
                   u32 outs, u32 width, u32 y_stride, u32 y_first, float eps, const u8* ahead, u32 ahead_bytes) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Shared s;
    u32 n0 = blockIdx.x * TILE_N, token = threadIdx.x / TILE_N, r = threadIdx.x % TILE_N, n = n0 + r;
    Few few(pool, width);
    if (!LATE) let_next_start();
    Words codes[STEPS][M_TILES][2];
    few.load(codes, w, [=](u32 r) { return min(n0 + r, outs - 1); });
    Floats weights = NORM ? four_at(gamma) : Floats{1.0f, 1.0f, 1.0f, 1.0f};
    float weight_scale = wscale[min(n, outs - 1)];
    bool mine = token < rows && n < outs;
    wait_for_previous();
    if (LATE) let_next_start();
    float* out = y + (size_t)token * y_stride + y_first + n;
    float old = ADD && mine ? *out : 0.0f;
    quantize_rows(few, s, x, weights, rows, eps);
    int acc[M_TILES][4][4] = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++) few.multiply(acc, codes[i], i);
    few.put(acc);
    if (!mine) return;
    float value = (float)few.sum(s, token, r) * s.scale[token] * weight_scale;
    *out = ADD ? old + value : value;
}

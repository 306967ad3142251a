// matmul_dense on Hopper's warpgroup tensor cores (compute capability 9.0; f16 tables, width a multiple of 64), for 5
// rows and more: y[l, y_first + n] = sum_k x[l,k] w[n,k].
// A block computes TILE_N rows of w, SPAN_N at a time, x 64 rows of x. x is scaled and split into two f16 as in
// matmul_dense_mma.cu. One thread keeps bulk copies of STAGES pieces of 64 columns in flight; its warpgroup splits the
// copied x, and two others multiply. Tensor cores sum products of 64 columns; these sums are added in f32.
#include "prelude.cuh"
#include "tensor.cuh"
#include "halves.cuh"
#include "warpgroup_half.cuh"
#include "barrier.cuh"
#include "ring.cuh"
#define M_TILES (SPAN_N / 128)  // tiles of 64 rows for each of the two multiplying warpgroups
#define LOW (SPAN_N * 8)        // 16-byte words of a stage: w, then the low f16 of x, then the high f16 of x
#define HIGH (LOW + 64 * 8)
#define STAGE (HIGH + 64 * 8)

struct alignas(16) Bits {
    u32 v[4];
};
struct alignas(8) Pairs {
    u32 a, b;
};

// Biased exponents of the powers of two that bring the largest value of each row of x into [1, 2).
__device__ inline void find_exponents(u32* exponents, const Bits* x, u32 t_first, u32 rows, u32 width) {
    u32 lane = threadIdx.x % 32;
    for (u32 token = threadIdx.x / 32; token < min(64u, rows - t_first); token += GROUP / 32) {
        const Bits* row = x + (size_t)(t_first + token) * (width / 4);
        u32 largest = 0;
#pragma unroll 8
        for (u32 k = lane; k < width / 4; k += 32)
            for (int i = 0; i < 4; i++) largest = max(largest, row[k].v[i] & 0x7fffffffu);
        for (int d = 16; d > 0; d >>= 1) largest = max(largest, shuffle_xor(largest, d));
        u32 exponent = largest >> 23;
        if (lane == 0) exponents[token] = exponent == 255 ? 127 : max(254 - max(exponent, 1u), 1u);
    }
    __syncthreads();
}

// Splits 64 columns of x into a stage, 16 threads per row.
__device__ inline void split_rows(Words* stage, const Floats* x, const u32* exponents, u32 chunk, u32 rows, u32 width) {
    u32 first = threadIdx.x % 128 / 16, column = threadIdx.x % 16;
    Floats v[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++)
        if (first + 8 * i < rows) v[i] = x[(size_t)(first + 8 * i) * (width / 4) + chunk * 16 + column];
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u32 row = first + 8 * i, at = (row * 8 + (column / 2 ^ row % 8)) * 2 + column % 2;
        if (row >= rows) continue;
        float factor = __uint_as_float(exponents[row] << 23);
        Pairs high, low;
        split_halves(v[i].x * factor, v[i].y * factor, high.a, low.a);
        split_halves(v[i].z * factor, v[i].w * factor, high.b, low.b);
        ((Pairs*)(stage + LOW))[at] = low;
        ((Pairs*)(stage + HIGH))[at] = high;
    }
}

// part[m] = the warpgroup's tile m of 64 rows of a stage's table * its x.
__device__ inline void multiply(float (*part)[32], const Words* stage, u32 n_warp) {
    u32 a[M_TILES][4][4], lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < M_TILES; m++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 row = n_warp + 64 * m + lane % 16;
            load_matrices(a[m][k], stage + row * 8 + ((2 * k + lane / 16) ^ row % 8));
        }
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            warpgroup_mma_half<0>(part[m], a[m][k], stage + LOW, 32 * k, k > 0);
            warpgroup_mma_half<0>(part[m], a[m][k], stage + HIGH, 32 * k, true);
        }
    warpgroup_commit();
    warpgroup_wait<0>();
}

extern "C" __global__ void __launch_bounds__(GROUP, 1)
    matmul_dense(const Floats* x, const Words* w, float* y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first,
                 const __grid_constant__ TensorMap table) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Barrier full[STAGES], empty[STAGES];
    __shared__ u32 exponents[64];
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32, chunks = width / 64;
    u32 n_first = blockIdx.x * TILE_N, t_first = blockIdx.y * 64;
    u32 subs = (min((u32)TILE_N, outs - n_first) + SPAN_N - 1) / SPAN_N, count = subs * chunks;
    auto copy = [&](u32 i, u32 stage) {
        barrier_expect(full + stage, SPAN_N * 128);
        copy_box(stages + stage * STAGE, table, i % chunks * 128, n_first + i / chunks * SPAN_N, full + stage);
    };
    let_next_start();
    if (threadIdx.x == 256) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(full + i, 5);
            barrier_init(empty + i, 8);
        }
        show_barriers();
        for (u32 i = 0; i < min((u32)STAGES, count); i++) copy(i, i);
    }
    __syncthreads();
    wait_for_previous();
    find_exponents(exponents, (const Bits*)x, t_first, rows, width);
    if (warp >= 8) {
        fewer_registers<88>();
        Ring at = {0, 1};
        for (u32 i = 0; i < count; i++, at.step()) {
            barrier_wait(empty + at.stage, at.phase);
            if (threadIdx.x == 256 && i >= STAGES) copy(i, at.stage);
            split_rows(stages + at.stage * STAGE, x + (size_t)t_first * (width / 4), exponents, i % chunks, rows - t_first, width);
            show_to_tensor_cores();
            sync_warp();
            if (lane == 0) barrier_arrive(full + at.stage);
        }
        return;
    }
    more_registers<208>();
    u32 n_warp = warp / 4 * (SPAN_N / 2) + warp % 4 * 16, chunk = 0, sub = 0;
    float acc[M_TILES][32], part[M_TILES][32];
    Ring at = {0, 0};
    for (u32 i = 0; i < count; i++, at.step()) {
        barrier_wait(full + at.stage, at.phase);
        multiply(part, stages + at.stage * STAGE, n_warp);
        if (lane == 0) barrier_arrive(empty + at.stage);
#pragma unroll
        for (int j = 0; j < 32 * M_TILES; j++)
            acc[j / 32][j % 32] = chunk == 0 ? part[j / 32][j % 32] : acc[j / 32][j % 32] + part[j / 32][j % 32];
        if (++chunk < chunks) continue;
#pragma unroll
        for (int j = 0; j < 32; j++) {
            u32 token = j / 4 * 8 + 2 * t + j % 2;
            if (t_first + token >= rows) continue;
            float inverse = __uint_as_float((254 - exponents[token]) << 23);
#pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                u32 n = n_first + sub * SPAN_N + n_warp + 64 * m + j % 4 / 2 * 8 + g;
                if (n < outs) y[(size_t)(t_first + token) * y_stride + y_first + n] = acc[m][j] * inverse;
            }
        }
        chunk = 0, sub++;
    }
}

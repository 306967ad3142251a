// matmul_ternary_block for one row (bits_of_row.cuh; compute capability 9.0): y[n] (+)= sum_a wscale[n, 32 a / BLOCK] *
// scale[a] * (sum over the 32 columns of a of (code[n,k] - 1) q[k]). width is a multiple of 512, outs of 8.
// Blocks are persistent and have equal shares of the weights. Since weights are constant, one thread starts bulk copies
// of 8 rows, STAGES of them in flight, before the preceding kernels have finished. Two copies are multiplied at a time,
// and the warps' shares of SPAN rows are added in shared memory.
// A stage has the 8 rows 128 bytes at a time, in the 128-byte swizzle, so that the rows that `ldmatrix` reads lie in
// different banks.
#include "prelude.cuh"

#define WARPS (GROUP / 32 - 1)  // multiplying warps
#include "bits_of_row.cuh"
#include "barrier.cuh"
#include "ring.cuh"

#define SCALES ((COLUMNS + BLOCK - 1) / BLOCK)  // weight scales of a row
#define STAGE (COLUMNS / 8)                     // 16-byte words of codes of 8 rows
#define SPAN 32

struct Stages {
    const Words* codes;
    const float* scales;  // [STAGES][8][SCALES]
    Barrier *full, *empty;
    Ring at;

    // Waits for the next 8 rows.
    __device__ u32 take() {
        u32 stage = at.stage;
        barrier_wait(full + stage, at.phase);
        at.step();
        return stage;
    }
    // Multiplies the rows of one stage, and of another or the same, into partial[16]; then releases the stages.
    __device__ void multiply(const OneRow& product, u32 low, u32 high, float* partial) const {
        u32 lane = threadIdx.x % 32, g = lane / 4, half = lane / 16;
        const Words* row = codes + (lane / 8 % 2 ? high : low) * STAGE + lane % 8 * 8;  // the row whose address this lane gives
        const float *of_low = scales + (low * 8 + g) * SCALES, *of_high = scales + (high * 8 + g) * SCALES;
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            u32 block = min(OneRow::block_of(i), COLUMNS / 128 - 1u), of_block = block * 128 / BLOCK, words[4];
            load_matrices(words, row + block / 4 * 64 + ((block % 4 * 2 + half) ^ lane % 8));
            product.add(sum, i, words, {of_low[of_block], of_high[of_block]});
        }
        OneRow::leave(sum, partial);
        if (lane) return;  // after the shuffles all lanes have read
        barrier_arrive(empty + low);
        if (high != low) barrier_arrive(empty + high);
    }
};

// One thread's copies of rows 8 first .. 8 end - 1.
__device__ inline void copy_rows(Words* codes, float* scales, Barrier* full, Barrier* empty, const TensorMap& weights,
                                 const float* wscale, u32 first, u32 end) {
    Ring at = {0, 1};
    for (u32 n = first; n < end; n++, at.step()) {
        barrier_wait(empty + at.stage, at.phase);
        barrier_expect(full + at.stage, 16 * STAGE + 32 * SCALES);
        copy_groups(codes + at.stage * STAGE, weights, 0, n, full + at.stage);
        copy_bulk(scales + at.stage * 8 * SCALES, wscale + (size_t)n * 8 * SCALES, 32 * SCALES, full + at.stage);
    }
}

KERNEL_RESIDENT(1)
matmul_ternary_block(const Words* w, const float* wscale, const u32* q, const float* scale, const int* qsum, float* y,
                     u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first,
                     const __grid_constant__ TensorMap weights) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Barrier full[STAGES], empty[STAGES], meeting;
    __shared__ float partial[2][WARPS][SPAN];
    Words* codes = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    float* scales = (float*)(codes + STAGES * STAGE);
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, groups = outs / 8;
    u32 first = blockIdx.z * groups / gridDim.z, end = (blockIdx.z + 1) * groups / gridDim.z;
    if (threadIdx.x == GROUP - 32) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, WARPS);
        }
        barrier_init(&meeting, WARPS);
        show_barriers();
    }
    __syncthreads();
    let_next_start();
    if (threadIdx.x == GROUP - 32) copy_rows(codes, scales, full, empty, weights, wscale, first, end);
    wait_for_previous();
    if (warp == WARPS) return;
    OneRow product;
    product.load(q, ABLOCK ? scale : nullptr, COLUMNS / 128);
    Stages ring = {codes, scales, full, empty, {0, 0}};
    for (u32 n = first, turn = 0; n < end; n += SPAN / 8, turn++) {
        u32 count = min(SPAN / 8u, end - n);
        float old = 0.0f;
        bool mine = turn % WARPS == warp && lane < 8 * count;  // this warp adds up the shares of these rows
        if (ADD && mine) old = y[y_first + 8 * n + lane];
        for (u32 i = 0; i < count; i += 2) {
            u32 low = ring.take(), high = i + 1 < count ? ring.take() : low;
            ring.multiply(product, low, high, partial[turn % 2][warp] + 8 * i);
        }
        sync_warp();
        if (lane == 0) barrier_arrive(&meeting);
        barrier_wait(&meeting, turn % 2);
        if (!mine) continue;
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) total += partial[turn % 2][i][lane];
        if (!ABLOCK) total *= scale[0];
        y[y_first + 8 * n + lane] = ADD ? old + total : total;
    }
}

// matmul_ternary on Hopper's warpgroup tensor cores (compute capability 9.0), for prompts: exact integers.
// y[t, n] (+)= (sum_k code[n, k] * q[t, k] - qsum[t]) * scale[t] * wscale[n], w[outs, width / 4], q[rows, width].
// Tiles and copies are those of stream.cuh. I2_S blocks are the A fragments (matmul_ternary_mma.cu), unpacked into registers
// a column block ahead while the tensor cores work on this one; each warpgroup has 64 * M_TILES rows of weights.
#include "prelude.cuh"
#include "tensor.cuh"
#define CODE "u8"
#include "warpgroup.cuh"
#define EXTRA (SPAN_T / 2)  // with a tile's last block: scale and qsum
#include "stream.cuh"

struct alignas(8) Factors {
    float even, odd;
};
struct alignas(8) Sums {
    int even, odd;
};

// What one thread copies for all: every column block of the tiles of this thread block.
__device__ inline void copy_tiles(const Work& work, Words* stages, Barrier* full, Barrier* empty, const TensorMap& weights,
                                  const TensorMap& tokens, const float* scale, const int* qsum, u32 rows, u32 outs) {
    Ring at = {0, 1};
    for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z) {
        u32 first_t = work.first_t(tile), factors = min((u32)SPAN_T, rows - first_t + 3) / 4 * 16;
        for (u32 b = 0; b < work.blocks; b++, at.step()) {
            bool last = b + 1 == work.blocks;
            Words* stage = stages + at.stage * STAGE;
            barrier_wait(empty + at.stage, at.phase);
            copy_block(work, stage, weights, tokens, tile, b, last ? 2 * factors : 0, full + at.stage, outs);
            if (!last) continue;
            copy_bulk(stage + FACTORS, scale + first_t, factors, full + at.stage);
            copy_bulk(stage + FACTORS + SPAN_T / 4, qsum + first_t, factors, full + at.stage);
        }
    }
}

struct Multiplier {
    Words* stages;
    Barrier *full, *empty;
    u32 lane_codes;  // word of a stage's weights where this lane's begin
    u32 x;           // which half of its rows' words lies first
    Ring at;
    u32 before;  // stage of the products that are still under way

    // The words of the next column block, each into four planes.
    __device__ void unpack(u32 (*a)[4][4]) {
        barrier_wait(full + at.stage, at.phase);
        const u32* codes = (const u32*)(stages + at.stage * STAGE + WEIGHTS) + lane_codes;
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 packed = codes[128 * m + i % 2 * 64 + (i / 2 ? 4 * (1 - x) : 4 * x)];
#pragma unroll
                for (int p = 0; p < 4; p++) a[m][p][i] = (packed >> (6 - 2 * p)) & 0x03030303u;
            }
    }
    // Starts a column block's products and, while they run, unpacks the next one's weights into `other`.
    __device__ void block(int (*acc)[SPAN_T / 2], u32 (*a)[4][4], u32 (*other)[4][4], u32 b, u32 blocks) {
        const Words* tokens = stages + at.stage * STAGE;
        warpgroup_arrive();
#pragma unroll
        for (int p = 0; p < 4; p++)
#pragma unroll
            for (int m = 0; m < M_TILES; m++) warpgroup_mma(acc[m], a[m][p], tokens, p, b || p);
        warpgroup_commit();
        warpgroup_wait<1>();
        if (b && threadIdx.x % 32 == 0) barrier_arrive(empty + before);
        before = at.stage;
        at.step();
        if (b + 1 < blocks) unpack(other);
    }
    __device__ void tile(int (*acc)[SPAN_T / 2], u32 blocks) {
        u32 a[M_TILES][4][4], other[M_TILES][4][4];
        unpack(a);
        for (u32 b = 0; b < blocks; b += 2) {
            block(acc, a, other, b, blocks);
            if (b + 1 < blocks) block(acc, other, a, b + 1, blocks);
        }
        warpgroup_wait<0>();
    }
};

extern "C" __global__ void __launch_bounds__(GROUP, 1)
    matmul_ternary(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                   float* __restrict__ y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first,
                   const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap tokens) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Barrier full[STAGES], empty[STAGES];
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    Work work = work_of(rows, outs, width);
    start_barriers(full, empty, 1);
    if (warp >= 4 * WARPGROUPS) {
        fewer_registers<24>();
        if (threadIdx.x == 128 * WARPGROUPS) copy_tiles(work, stages, full, empty, weights, tokens, scale, qsum, rows, outs);
        return;
    }
    more_registers<240>();
    u32 n_warp = warp * 16 * M_TILES;
    Multiplier multiplier = {stages, full, empty, (n_warp + g) * 8 + t, g / 4, {0, 0}, 0};
    u32 own = n_warp + OWN * g;
    for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z) {
        int acc[M_TILES][SPAN_T / 2];
        multiplier.tile(acc, work.blocks);
        u32 n = work.first_n(tile) + own;
        const Words* factors = stages + multiplier.before * STAGE + FACTORS;
        const Factors* of_token = (const Factors*)factors + t;
        const Sums* sum_of = (const Sums*)(factors + SPAN_T / 4) + t;
        Outs scales = *(const Outs*)(wscale + min(n, outs - OWN));
        store_outs(y + y_first, y_stride, outs, rows, n, work.first_t(tile) + 2 * t, [&](int i, int e) {
            int sum = e ? sum_of[4 * i].odd : sum_of[4 * i].even;
            float factor = e ? of_token[4 * i].odd : of_token[4 * i].even;
            Outs v;
#pragma unroll
            for (int r = 0; r < OWN; r++) v.v[r] = (float)(acc[r / 2][4 * i + r % 2 * 2 + e] - sum) * factor * scales.v[r];
            return v;
        });
        sync_warp();
        if (lane == 0) barrier_arrive(empty + multiplier.before);
    }
}

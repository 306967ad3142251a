// Ternary products of prompts with scales per row, on Hopper's warpgroup tensor cores (compute capability 9.0): exact
// integers. Tiles and copies are those of stream.cuh, with PARTS parts of the weights. I2_S blocks are the A fragments
// (matmul_ternary_mma.cu), unpacked into registers a column block ahead of the tensor cores.
#include "tensor.cuh"
#define CODE "u8"
#include "warpgroup.cuh"
#define EXTRA 0
#include "stream.cuh"
#define SLOT (SPAN_T / 2)  // words of a tile's scales and sums of codes; those of two tiles follow the stages

struct alignas(8) Factors {
    float even, odd;
};
struct alignas(8) Sums {
    int even, odd;
};

// used: a slot may be written again.
struct Barriers {
    Barrier full[STAGES], empty[STAGES], used[2];
};

// The copies that one thread starts for all: every column block of the tiles of this thread block.
__device__ inline void copy_tiles(const Work& work, Words* stages, Barriers& barriers, const TensorMap& weights,
                                  const TensorMap& tokens, const float* scale, const int* qsum, u32 rows, u32 outs) {
    Ring at = {0, 1};
    u32 count = 0;
    for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z, count++) {
        u32 first_t = work.first_t(tile), factors = min((u32)SPAN_T, rows - first_t + 3) / 4 * 16;
        for (u32 b = 0; b < work.blocks; b++, at.step()) {
            bool last = b + 1 == work.blocks;
            Barrier* full = barriers.full + at.stage;
            barrier_wait(barriers.empty + at.stage, at.phase);
            copy_block(work, stages + at.stage * STAGE, weights, tokens, tile, b, last ? 2 * factors : 0, full, outs);
            if (!last) continue;
            Words* slot = stages + STAGES * STAGE + count % 2 * SLOT;
            barrier_wait(barriers.used + count % 2, 1 - count / 2 % 2);
            copy_bulk(slot, scale + first_t, factors, full);
            copy_bulk(slot + SPAN_T / 4, qsum + first_t, factors, full);
        }
    }
}

struct Multiplier {
    const Words* stages;
    Barriers& barriers;
    u32 lane_codes;  // first word of this lane in a stage's weights
    u32 x;           // which half of its rows' words lies first
    u32 blocks;
    Ring at;

    // Unpacks the words of the next column block, each into four planes.
    __device__ void unpack(u32 (*a)[4][4]) {
        barrier_wait(barriers.full + at.stage, at.phase);
        const u32* codes = (const u32*)(stages + at.stage * STAGE + WEIGHTS) + lane_codes;
#pragma unroll
        for (int m = 0; m < M_TILES; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 packed = codes[m % ROW_TILES * 128 + m / ROW_TILES * SPAN_N * 8 + i % 2 * 64 + (i / 2 ? 4 * (1 - x) : 4 * x)];
#pragma unroll
                for (int p = 0; p < 4; p++) a[m][p][i] = (packed >> (6 - 2 * p)) & 0x03030303u;
            }
    }
    // Starts a column block's products and, while they run, unpacks the next one's weights into `other`.
    __device__ void block(int (*acc)[SPAN_T / 2], u32 (*a)[4][4], u32 (*other)[4][4], u32 b, u32& before) {
        const Words* tokens = stages + at.stage * STAGE;
        warpgroup_arrive();
#pragma unroll
        for (int p = 0; p < 4; p++)
#pragma unroll
            for (int m = 0; m < M_TILES; m++) warpgroup_mma(acc[m], a[m][p], tokens, p, b || p);
        warpgroup_commit();
        warpgroup_wait<1>();
        if (b && threadIdx.x % 32 == 0) barrier_arrive(barriers.empty + before);
        before = at.stage;
        at.step();
        if (b + 1 < blocks) unpack(other);
    }
    __device__ void tile(int (*acc)[SPAN_T / 2]) {
        u32 a[M_TILES][4][4], other[M_TILES][4][4], before = 0;
        unpack(a);
        for (u32 b = 0; b < blocks; b += 2) {
            block(acc, a, other, b, before);
            if (b + 1 < blocks) block(acc, other, a, b + 1, before);
        }
        warpgroup_wait<0>();
        if (threadIdx.x % 32 == 0) barrier_arrive(barriers.empty + before);
    }
};

// Computes all tiles of this thread block. store(acc, factors, sums, n, t): n, t: a lane's first row and token;
// factors, sums: from that token on.
template <class Store>
__device__ inline void stream_tiles(const float* scale, const int* qsum, u32 rows, u32 outs, u32 width, const TensorMap& weights,
                                    const TensorMap& tokens, Store store) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Barriers barriers;
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32, n_warp = warp * 16 * ROW_TILES;
    Work work = work_of(rows, outs, width);
    if (threadIdx.x == 0)
        for (u32 i = 0; i < 2; i++) barrier_init(barriers.used + i, 8);
    start_barriers(barriers.full, barriers.empty, 1);
    if (warp >= 8) {
        fewer_registers<24>();
        if (threadIdx.x == 256) copy_tiles(work, stages, barriers, weights, tokens, scale, qsum, rows, outs);
        return;
    }
    more_registers<240>();
    Multiplier multiplier = {stages, barriers, (n_warp + g) * 8 + t, g / 4, work.blocks, {0, 0}};
    u32 count = 0;
    for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z, count++) {
        const Words* slot = stages + STAGES * STAGE + count % 2 * SLOT;
        int acc[M_TILES][SPAN_T / 2];
        multiplier.tile(acc);
        store(acc, (const Factors*)slot + t, (const Sums*)(slot + SPAN_T / 4) + t, work.first_n(tile) + n_warp + OWN * g,
              work.first_t(tile) + 2 * t);
        sync_warp();
        if (lane == 0) barrier_arrive(barriers.used + count % 2);
    }
}

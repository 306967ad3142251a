// Ternary products with block scales of few rows on Hopper's warpgroup tensor cores (compute capability 9.0): out[n, t]
// = sum over blocks b of 128 columns of wscale[n, 128 b / BLOCK] * sum over its parts p of 32 columns of scale[t, 4 b +
// p] * (sum of (code[n, k] - 1) * q[t, k], exact 32-bit integers). With ABLOCK 128 a block is one part.
// The warpgroups of a thread block multiply ROW_TILES tiles of 64 weight rows by SPAN_T tokens, COLUMNS at a time. The
// SHARES warpgroups of one tile (1, 2 or 4) take column blocks in turns, and their sums are added in order: the order
// of an output's sum depends on SHARES and SPLITS, not on the number of tokens.
// One thread keeps bulk copies of STAGES lines of four column blocks in flight; copies of codes start before the
// preceding kernels have finished. I2_S blocks are the A fragments (matmul_ternary_mma.cu), unpacked into registers as
// 64 * (code - 1). With GATED a tile has 32 rows of each half of the weights, so that the two rows of a lane belong to
// the same output.
#include "tensor.cuh"
#define CODE "s8"
#include "warpgroup.cuh"
#include "barrier.cuh"
#include "ring.cuh"
#define WARPGROUPS (GROUP / 128)
#define SHARES (WARPGROUPS / ROW_TILES)  // warpgroups of a tile
#define SPAN_N (64 * ROW_TILES)
#define BESIDE (GATED ? SPAN_N / 2 : 8)    // distance of a lane's two rows
#define TOKENS (SPAN_N * 8)                // 16-byte words of a stage: codes, activations of each of its column blocks,
#define FACTORS (TOKENS + 4 * SPAN_T * 8)  // activation scales, sixteen per token
#define STAGE ((FACTORS + SPAN_T * 4 + 63) / 64 * 64)
#define SUMS (SPAN_T / 2)                  // sums of a thread
#define PARTS (ABLOCK == 128 ? 1 : 4)      // parts of a column block with their own activation scales

struct Shared {
    Barrier codes[STAGES], tokens[STAGES], empty[STAGES];
};

// The lines of a thread block, which has one of SPLITS parts of the columns.
struct Part {
    u32 first, lines, blocks;  // its first line; its lines and column blocks

    __device__ Part(u32 width) {
        u32 all = width / 128, each = ((all + 3) / 4 + SPLITS - 1) / SPLITS;
        first = blockIdx.z * each;
        blocks = min(4 * each, all - min(all, 4 * first));
        lines = (blocks + 3) / 4;
    }
    // Floats between the scales of weight rows in shared memory, against bank conflicts; the same for each part.
    __device__ static u32 pitch(u32 width) { return ((width / 128 + 3) / 4 + SPLITS - 1) / SPLITS * 4 + 1; }
};

// The copies that one thread starts.
struct Copies {
    Words* stages;
    Shared& s;
    const TensorMap &weights, &activations, &scales;
    u32 n_first, outs;

    __device__ void codes(u32 stage, u32 line) const {
        barrier_expect(s.codes + stage, 128 * SPAN_N);
        copy_box(stages + stage * STAGE, weights, 128 * line, n_first, s.codes + stage);
        if (GATED) copy_box(stages + stage * STAGE + SPAN_N * 4, weights, 128 * line, outs + n_first, s.codes + stage);
    }
    __device__ void tokens(u32 stage, u32 line) const {
        barrier_expect(s.tokens + stage, (4 * 128 + 64) * SPAN_T);
        copy_groups(stages + stage * STAGE + TOKENS, activations, 0, 4 * line, s.tokens + stage);
        copy_box(stages + stage * STAGE + FACTORS, scales, 64 * line, 0, s.tokens + stage);
    }
    // Starts the copy of the next line into a stage once all have read line i of the part.
    __device__ void next(const Part& part, u32 i, Ring at) const {
        if (i + STAGES >= part.lines) return;
        barrier_wait(s.empty + at.stage, at.phase);
        codes(at.stage, part.first + i + STAGES);
        tokens(at.stage, part.first + i + STAGES);
    }
};

// Starts the copies of the scales of the block's weight rows, for its column blocks.
__device__ inline void load_scales(float* to, const float* wscale, const Part& part, u32 n_first, u32 outs, u32 width) {
    u32 of_row = (width + BLOCK - 1) / BLOCK, pitch = Part::pitch(width);
    for (u32 n = threadIdx.x / 32; n < SPAN_N; n += GROUP / 32) {
        u32 row = GATED ? n / BESIDE * outs + min(n_first + n % BESIDE, outs - 1) : min(n_first + n, outs - 1);
        for (u32 b = threadIdx.x % 32; b < part.blocks; b += 32)
            copy_async_word(to + n * pitch + b, wscale + (size_t)row * of_row + (4 * part.first + b) * 128 / BLOCK);
    }
    copy_group();
}

struct Multiplier {
    Words* stages;
    Shared& s;
    const float* weights;  // scales of this lane's first row
    u32 pitch, row, share, lane;

    // Unpacks the words of 16 rows of column block b of a stage into four planes of 64 * (code - 1).
    __device__ void unpack(u32 (&a)[4][4], const Words* stage, u32 b) const {
        const u32* codes = (const u32*)stage + row * 32 + lane % 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 packed = codes[i % 2 * (BESIDE * 32) + ((2 * b + i / 2) ^ row % 8) * 4];
            packed = ~(packed | (packed << 1 & 0xaaaaaaaau));  // each pair of bits less 1
#pragma unroll
            for (int p = 0; p < 4; p++) a[p][i] = settled(packed << (2 * p) & 0xc0c0c0c0u);
        }
    }
    // acc += the parts' sums for COLUMNS tokens, scaled.
    __device__ void weigh(float* acc, const int (&sums)[PARTS][COLUMNS / 2], const Floats (&factors)[COLUMNS / 4], const float (&weight)[2]) const {
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) {
            Floats f = factors[i / 4 * 2 + i % 2];
            float sum = (float)sums[0][i] * f.x;
            if (PARTS > 1) sum = fmaf((float)sums[1 % PARTS][i], f.y, sum);
            if (PARTS > 1) sum = fmaf((float)sums[2 % PARTS][i], f.z, sum);
            if (PARTS > 1) sum = fmaf((float)sums[3 % PARTS][i], f.w, sum);
            acc[i] = fmaf(weight[i % 4 / 2], sum, acc[i]);
        }
    }
    // acc += column block b of a stage, number `block` of the part.
    __device__ void multiply(float (&acc)[SUMS], const Words* stage, u32 b, u32 block) const {
        u32 a[4][4], token = lane % 4 * 2;
        unpack(a, stage, b);
        float weight[2] = {weights[block] * (1.0f / 64.0f), weights[BESIDE * pitch + block] * (1.0f / 64.0f)};
        const Floats* scales = (const Floats*)(stage + FACTORS) + token * 4 + (b ^ token / 2);  // the 64-byte swizzle
#pragma unroll
        for (int i = 0; i < SPAN_T / COLUMNS; i++) {
            int sums[PARTS][COLUMNS / 2];
            warpgroup_arrive();
#pragma unroll
            for (int p = 0; p < 4; p++)
                warpgroup_mma(sums[p % PARTS], a[p], stage + TOKENS + (b * SPAN_T + i * COLUMNS) * 8, p, p >= PARTS);
            warpgroup_commit();
            Floats factors[COLUMNS / 4];  // of the parts of each token
#pragma unroll
            for (int j = 0; j < COLUMNS / 4; j++) factors[j] = scales[i * COLUMNS * 4 + j / 2 * 32 + j % 2 * 4];
            warpgroup_wait<0>();
            weigh(acc + i * (COLUMNS / 2), sums, factors, weight);
        }
    }
    // Adds this warpgroup's column blocks. One thread starts the next copies into stages that all have read.
    __device__ void part(float (&acc)[SUMS], const Part& part, const Copies& copies) const {
#pragma unroll
        for (int i = 0; i < SUMS; i++) acc[i] = 0.0f;
        Ring at = {0, 0}, before = at;
        for (u32 line = 0; line < part.lines; line++, before = at, at.step()) {
            if (threadIdx.x == 0 && line) copies.next(part, line - 1, before);
            sync_warp();
            barrier_wait(s.codes + at.stage, at.phase);
            barrier_wait(s.tokens + at.stage, at.phase);
            for (u32 b = share; b < min(4u, part.blocks - 4 * line); b += SHARES)
                multiply(acc, stages + at.stage * STAGE, b, 4 * line + b);
            sync_warp();
            if (lane == 0) barrier_arrive(s.empty + at.stage);
        }
    }
};

// The main loop of a block. acc: the sums of this warpgroup's column blocks for rows `row` and row + BESIDE of the
// block's weights. ready(): called once the preceding kernels have finished.
template <class Ready>
__device__ inline void group_sums(float (&acc)[SUMS], Words* stages, u32 row, u32 share, const float* wscale, u32 outs, u32 width,
                                  const TensorMap& weights, const TensorMap& tokens, const TensorMap& scales, Ready ready) {
    __shared__ Shared s;
    float* own = (float*)(stages + STAGES * STAGE);
    u32 pitch = Part::pitch(width), n_first = blockIdx.x * TILE_N;
    Part part(width);
    Copies copies = {stages, s, weights, tokens, scales, n_first, outs};
    bool copying = threadIdx.x == 0;
    let_next_start();
    if (copying) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(s.codes + i, 1);
            barrier_init(s.tokens + i, 1);
            barrier_init(s.empty + i, 4 * WARPGROUPS);
        }
        show_barriers();
        for (u32 i = 0; i < min((u32)STAGES, part.lines); i++) copies.codes(i, part.first + i);
    }
    load_scales(own, wscale, part, n_first, outs, width);
    wait_for_previous();
    for (u32 i = 0; copying && i < min((u32)STAGES, part.lines); i++) copies.tokens(i, part.first + i);
    ready();
    copy_wait<0>();
    __syncthreads();
    Multiplier multiplier = {stages, s, own + row * pitch, pitch, row, share, threadIdx.x % 32};
    multiplier.part(acc, part, copies);
}

// matmul_ternary_block on Hopper's warpgroup tensor cores (compute capability 9.0), for prompts: y[t, n] (+)= sum_a
// wscale[n, 32 a / BLOCK] * scale[t, a] * (sum over the 32 columns of a of (code[n, k] - 1) * q[t, k]), or with
// scale[t] after the sum if ABLOCK is 0; w[outs, width / 4], q[rows, width]. outs, y_stride, y_first: multiples of 4.
// Blocks take tiles in turns (turns.cuh).
// Each plane, 32 columns, has its own exact sums: integers as f16 have exact products, and f32 sums need no conversion,
// which takes longer than twice the products. Tokens are the rows of a product, so that a lane needs two activation
// scales instead of those of all tokens. The last warpgroup unpacks weights to f16 for the others; 16 columns are
// multiplied in the order 0, 2, 4, .. 14, 1, 3, .., in which bytes become pairs.
#include "prelude.cuh"
#include "tensor.cuh"
#include "halves.cuh"
#include "warpgroup_half.cuh"
#define WARPGROUPS 2  // multiplying warpgroups
#define SPAN_N WEIGHT_ROWS  // weight rows of a tile: 96 or 128
#include "turns.cuh"

#define HALVES (BLOCK == 64 ? 2 : 1)    // weight scales of a row for 128 columns
#define PLANES (4 / HALVES)             // planes that share a weight scale
#define WEIGHTS (SPAN_T * 8)            // 16-byte words of a stage: activations, weights of 64 columns, of 64 more,
#define SCALES (WEIGHTS + SPAN_N * 16)  // activation scales, four per token,
#define FACTORS (SCALES + SPAN_T)       // weight scales, SPAN_N for each of HALVES
#define STAGE (FACTORS + 64)
#define LINE (SPAN_N * 8 + SPAN_T * 4)  // 16-byte words of four column blocks as copied: codes, and activation scales

// Returns plane s of a word of codes, less 1, times WEIGHT, as f16: bytes 0 and 2. The bits of 4^i code are that many
// times 2^-24.
#define WEIGHT (1.0f / 512.0f)
__device__ inline u32 plane_halves(u32 word, int s) {
    const u32 i = 3 - s, pair = 0x00010001u;
    return multiply_add_halves(word & 3 * pair << 2 * i, (0x7800 - 0x800 * i) * pair, 0x9800 * pair);
}
// Copies of lines, four column blocks of a tile each, two in flight.
struct Lines {
    Words* lines;
    Barrier *come, *read;
    u32 tile, first, count;  // of the next copy: its tile, its first column block, the number of copies before it

    __device__ void ask(const Work& work, const TensorMap& weights, const TensorMap& scales) {
        if (tile >= work.tiles) return;
        u32 at = count % 2;
        barrier_wait(read + at, (count / 2 + 1) % 2);
        barrier_expect(come + at, 128 * SPAN_N + (ABLOCK ? 64 * SPAN_T : 0));
        copy_box(lines + at * LINE, weights, first * 32, work.first_n(tile), come + at);
        if (ABLOCK) copy_box(lines + at * LINE + SPAN_N * 8, scales, first * 16, work.first_t(tile), come + at);
        count++, first += 4;
        if (first >= work.blocks) first = 0, tile += gridDim.z;
    }
};

// Prepares a column block of a line for the multiplying warps: thread p unpacks a weight row into row p of `stage`, and
// copies the scales of a token.
// copies the scales of a token.
__device__ inline void unpack(Words* stage, const Words* line, u32 b, u32 p, u32 n, const float* factors) {
    ((Floats*)stage)[SCALES + p] = ABLOCK ? ((const Floats*)line)[SPAN_N * 8 + p * 4 + (b ^ p / 2 % 4)] : Floats{1.0f, 1.0f, 1.0f, 1.0f};
    if (p >= SPAN_N) return;
    Words half[2] = {line[n * 8 + (2 * b ^ n % 8)], line[n * 8 + (2 * b + 1 ^ n % 8)]};
#pragma unroll
    for (int i = 0; i < 16; i++) {  // s: plane; i / 2 % 2: columns 16.. of it; i % 2: odd bytes
        u32 s = i / 4, odd = 8 * (i % 2);
        Words v = half[i / 2 % 2];
        v = {plane_halves(v.x >> odd, s), plane_halves(v.y >> odd, s), plane_halves(v.z >> odd, s), plane_halves(v.w >> odd, s)};
        stage[WEIGHTS + s / 2 * (SPAN_N * 8) + p * 8 + ((i % 8) ^ p % 8)] = v;
    }
#pragma unroll
    for (int h = 0; h < HALVES; h++) ((float*)(stage + FACTORS))[h * SPAN_N + n] = factors[h];
}

// The loop of the last warpgroup: unpacks all column blocks of the tiles of this thread block.
__device__ inline void unpack_tiles(const Work& work, Words* stages, Barrier* full, Barrier* empty, Lines lines,
                                    const float* wscale, u32 outs, const TensorMap& weights, const TensorMap& tokens,
                                    const TensorMap& scales) {
    bool asks = threadIdx.x == 128 * WARPGROUPS;
    u32 p = threadIdx.x % 128, of_row = (work.blocks * 128 + BLOCK - 1) / BLOCK, line = 0;
    u32 n = p / 16 * 16 + p % 8 / 2 * 4 + p % 16 / 8 * 2 + p % 2;  // makes a lane's outputs neighbours
    Ring at = {0, 1};
    if (asks) lines.ask(work, weights, scales);
    for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z) {
        const float* row = wscale + (size_t)min(work.first_n(tile) + n, outs - 1) * of_row;
        float coming[HALVES], factors[HALVES];
        auto load = [&](u32 b) {
#pragma unroll
            for (int h = 0; h < HALVES; h++) coming[h] = row[(b * 128 + 64 * h) / BLOCK];
        };
        load(0);
        for (u32 b = 0; b < work.blocks; b++, at.step()) {
            if (b % 4 == 0) {
                if (asks) lines.ask(work, weights, scales);
                sync_warp();
                barrier_wait(lines.come + line % 2, line / 2 % 2);
            }
#pragma unroll
            for (int h = 0; h < HALVES; h++) factors[h] = coming[h];
            load(min(b + 1, work.blocks - 1));
            Words* stage = stages + at.stage * STAGE;
            barrier_wait(empty + at.stage, at.phase);
            if (asks) {
                barrier_expect(full + at.stage, 128 * SPAN_T);
                copy_box(stage, tokens, b * 128, work.first_t(tile), full + at.stage);
            }
            unpack(stage, lines.lines + line % 2 * LINE, b % 4, p, n, factors);
            show_to_tensor_cores();
            sync_warp();
            if (p % 32 == 0) barrier_arrive(full + at.stage);
            if (b % 4 < 3 && b + 1 < work.blocks) continue;
            if (p % 32 == 0) barrier_arrive(lines.read + line % 2);
            line++;
        }
    }
}

// A warp's 16 tokens x SPAN_N outputs, acc in the layout of mma.m16n8k16.
struct Multiplier {
    Words* stages;
    Barrier *full, *empty;
    u32 lane, row;  // row: of a stage's activations, whose address this lane gives
    Ring at;

    // Loads plane s of the activations.
    __device__ void load(u32 (*a)[4], const Words* stage, int s) const {
        u32 words[4];
        load_matrices(words, stage + row * 8 + ((2 * s + lane / 16) ^ row % 8));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[i / 2][i % 2] = byte_halves(words[i], 0, 2);
            a[i / 2][2 + i % 2] = byte_halves(words[i], 1, 3);
        }
    }
    // acc += the sums of a column block, plane by plane: one warpgroup scales while the other multiplies.
    __device__ void block(float* acc, u32 (*a)[2][4], bool last) {
        const Words* stage = stages + at.stage * STAGE;
        const float* scales = (const float*)(stage + SCALES) + 4 * ((row & ~15u) + lane / 4);
        float sums[SPAN_N / 2], part[SPAN_N / 2];
        u32 used = at.stage;
        at.step();
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const Words* weights = stage + WEIGHTS + s / 2 * (SPAN_N * 8);
            warpgroup_arrive();
            warpgroup_mma_half_rows<SPAN_N>(sums, a[s % 2][0], weights, s % 2 * 64, false);
            warpgroup_mma_half_rows<SPAN_N>(sums, a[s % 2][1], weights, s % 2 * 64 + 32, true);
            warpgroup_commit();
            if (s < 3) load(a[(s + 1) % 2], stage, s + 1);
            else if (!last) begin(a);
            float unit[2] = {scales[s], scales[4 * 8 + s]};
            warpgroup_wait<0>();
#pragma unroll
            for (int j = 0; j < SPAN_N / 2; j++) part[j] = (s % PLANES ? part[j] : 0.0f) + sums[j] * unit[j % 4 / 2];
            if (s % PLANES == PLANES - 1) weigh(acc, part, (const Floats*)stage + FACTORS + s / PLANES * (SPAN_N / 4) + lane % 4);
        }
        sync_warp();
        if (lane == 0) barrier_arrive(empty + used);
    }
    // Waits for a stage, and loads its first plane.
    __device__ void begin(u32 (*a)[2][4]) const {
        barrier_wait(full + at.stage, at.phase);
        load(a[0], stages + at.stage * STAGE, 0);
    }
    // acc += weight scales * part.
    __device__ void weigh(float* acc, const float* part, const Floats* factors) const {
#pragma unroll
        for (int i = 0; i < SPAN_N / 16; i++) {
            Floats f = factors[4 * i];
            float factor[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
            for (int j = 0; j < 8; j++) acc[8 * i + j] += factor[j / 4 * 2 + j % 2] * part[8 * i + j];
        }
    }
    __device__ void tile(float* acc, u32 blocks) {
        u32 a[2][2][4];
#pragma unroll
        for (int i = 0; i < SPAN_N / 2; i++) acc[i] = 0.0f;
        begin(a);
        for (u32 b = 0; b < blocks; b++) block(acc, a, b + 1 == blocks);
    }
};

// y (+)= a lane's row r of acc, four neighbouring outputs at a time from n on.
__device__ inline void store(float* y, const float* acc, int r, u32 n, u32 outs, float factor) {
#pragma unroll
    for (int i = 0; i < SPAN_N / 16; i++) {
        const float* sums = acc + 8 * i + 2 * r;
        Floats* to = (Floats*)(y + n + 16 * i);
        if (n + 16 * i >= outs) continue;
        Floats old = ADD ? *to : Floats{0.0f, 0.0f, 0.0f, 0.0f};
        *to = {old.x + sums[0] * factor, old.y + sums[1] * factor, old.z + sums[4] * factor, old.w + sums[5] * factor};
    }
}

extern "C" __global__ void __launch_bounds__(GROUP, 1)
    matmul_ternary_block(const Words* w, const float* wscale, const Words* q, const float* scale, const int* qsum,
                         float* __restrict__ y, u32 rows, u32 outs, u32 width, u32 y_stride, u32 y_first,
                         const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap tokens,
                         const __grid_constant__ TensorMap scales) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Barrier full[STAGES], empty[STAGES], come[2], read[2];
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Work work = work_of(rows, outs, width);
    for (u32 i = 0; threadIdx.x == 0 && i < 2; i++) barrier_init(come + i, 1), barrier_init(read + i, 4);
    start_barriers(full, empty, 1 + 4);  // the copying thread and the unpacking warps
    if (warp >= 4 * WARPGROUPS) {
        fewer_registers<72>();
        Lines lines = {stages + STAGES * STAGE, come, read, blockIdx.z, 0, 0};
        unpack_tiles(work, stages, full, empty, lines, wscale, outs, weights, tokens, scales);
        return;
    }
    more_registers<216>();
    Multiplier multiplier = {stages, full, empty, lane, warp * 16 + lane % 16, {0, 0}};
    for (u32 tile = blockIdx.z; tile < work.tiles; tile += gridDim.z) {
        float acc[SPAN_N / 2];
        multiplier.tile(acc, work.blocks);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 token = work.first_t(tile) + warp * 16 + lane / 4 + 8 * r;
            if (token < rows)
                store(y + (size_t)token * y_stride + y_first, acc, r, work.first_n(tile) + lane % 4 * 4, outs,
                      ABLOCK ? 1.0f / WEIGHT : scale[token] / WEIGHT);
        }
    }
}

// Nine rows of activations and more times weights with block scales, on tensor cores: the outputs of block_rows.cuh,
// with the same bits, for TILES tiles of eight rows. A thread block has all columns; its warps share them as there, in
// SECTIONS times STEPS steps, a section for each of the blocks that share them there.
// Codes of TOGETHER pieces of weight rows are in registers while all tiles are multiplied by them, and those of the
// next pieces are in flight. Then the warps' shares are added (a round); with several steps, a block has only TOGETHER
// pieces. Loops over rounds and tiles are not unrolled: with twice the instructions most products took longer.
// Activations lie in shared memory, a place for each warp and tile; that of the next step is copied once a tile has been
// multiplied.
#define TILE_SUMS (TOGETHER * 128)      // sums of a warp for a tile, in a round
#define ROUND_SUMS (TILES * TILE_SUMS)  // sums of a warp, and of a block, in a round
#define ROOM ROUND_SUMS
#include "block_shares.cuh"
#define SPANS (STEPS * SECTIONS)
#define ROUNDS (PIECES / TOGETHER)

// The rows of a block of TILE_T: the first, their number, and operands from it on.
struct Rows {
    u32 first, count;

    __device__ explicit Rows(u32 rows) : first(blockIdx.y * TILE_T), count(min(rows - blockIdx.y * TILE_T, (u32)TILE_T)) {}
    // of: elements with `each` for a row.
    template <class T>
    __device__ T* part(T* of, u32 each) const { return of + (size_t)first * each; }
};

// The places of a block in shared memory. partial: [WARPS][ROUND_SUMS]; scales: [16 PIECES][PITCH]; made: outputs,
// [TILE_T][MADE_PITCH].
struct Places {
    float *x, *partial, *scales, *made;

    __device__ explicit Places(Words* pool) : x((float*)pool) {
        partial = x + WARPS * TILES * TOKEN_FLOATS;
        scales = partial + WARPS * ROUND_SUMS;
        made = scales + 16 * PIECES * PITCH;
    }
    __device__ float* tile(u32 number) const { return x + (threadIdx.x / 32 * TILES + number) * TOKEN_FLOATS; }
};

// The factors of a tile, made once in the place of its scales and sums of codes: with those of planes, and `minus` of
// block_rows.cuh. Rows that do not exist get zeros. first: the tile's first row; count: all rows.
__device__ inline void prepare(const Tokens& tokens, const Columns& columns, u32 first, u32 count) {
    u32 lane = threadIdx.x % 32, token = lane / 2, b = lane % 2;
    sync_warp();
    if (lane < 16) {
        bool used = first + token < count && columns.block() + b < columns.all;
        Floats f = used ? tokens.scales(token, b) : Floats{0.0f, 0.0f, 0.0f, 0.0f};
        Integers sum = used ? ((const Integers*)tokens.qsum)[lane] : Integers{0, 0, 0, 0};
        ((Floats*)tokens.scale)[lane] = {f.x * (1.0f / 64.0f), f.y * (1.0f / 16.0f), f.z * (1.0f / 4.0f), f.w};
        ((float*)tokens.qsum)[4 * lane] = minus_of(f, sum);
    }
    sync_warp();
}

// This lane's activations of a column block, as in block_rows.cuh.
struct OneBlock {
    Pair q[4];
    float factor[4][2], minus[2];

    __device__ void load(const Tokens& tokens, int b) {
        u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int s = 0; s < 4; s++) q[s] = ((const Pair*)(tokens.q + g * 288))[16 * b + 4 * s + t % 2 * 2 + t / 2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            u32 at = 2 * (2 * t + e) + b;
            Floats f = ((const Floats*)tokens.scale)[at];
            factor[0][e] = f.x, factor[1][e] = f.y, factor[2][e] = f.z, factor[3][e] = f.w;
            minus[e] = ((const float*)tokens.qsum)[4 * at];
        }
    }
    // value += weight * the products with a column block: words of rows g and g + 8.
    __device__ void multiply(Floats& value, const u32 (&low)[2], const u32 (&high)[2], float of_low, float of_high) const {
        float sum[4] = {minus[0], minus[1], minus[0], minus[1]};
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const u32 mask = 0x03030303u << (6 - 2 * s);
            u32 a[4] = {low[0] & mask, high[0] & mask, low[1] & mask, high[1] & mask};
            int c[4];
            mma_from(BIAS_BITS, c, a, q[s].a, q[s].b);
#pragma unroll
            for (int r = 0; r < 4; r++) sum[r] = fmaf(__uint_as_float(c[r]) - BIAS, factor[s][r % 2], sum[r]);
        }
        value.x = fmaf(of_low, sum[0], value.x), value.y = fmaf(of_low, sum[1], value.y);
        value.z = fmaf(of_high, sum[2], value.z), value.w = fmaf(of_high, sum[3], value.w);
    }
};

// value[p] = the warp's share of a tile and of piece p of a round. weights: scales of the pieces' rows from the warp's
// first block on.
__device__ inline void multiply_tile(Floats (&value)[TOGETHER], const Tokens& tokens, const Piece (&pieces)[TOGETHER], const float* weights) {
    u32 g = threadIdx.x % 32 / 4;
    OneBlock x;
#pragma unroll
    for (int p = 0; p < TOGETHER; p++) value[p] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int b = 0; b < 2; b++) {
        x.load(tokens, b);
#pragma unroll
        for (int p = 0; p < TOGETHER; p++) {
            Words low = pieces[p].codes[0], high = pieces[p].codes[1];
            const float* of = weights + (16 * p + g) * PITCH + b;
            x.multiply(value[p], {b ? low.z : low.x, b ? low.w : low.y}, {b ? high.z : high.x, b ? high.w : high.y}, of[0], of[8 * PITCH]);
        }
    }
}

// Leaves four sums of a warp, or adds them to those of earlier steps.
__device__ inline void leave(Floats& to, const Floats& value, bool first) {
    to = STEPS == 1 || first ? value : Floats{to.x + value.x, to.y + value.y, to.z + value.z, to.w + value.w};
}

// Keeps the compiler from unpacking a piece's codes once for all tiles, which takes more registers than there are.
__device__ inline void hide(Piece& piece) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        Words& w = piece.codes[j];
        asm volatile("" : "+r"(w.x), "+r"(w.y), "+r"(w.z), "+r"(w.w));
    }
}

// Multiplies the block's weight rows by its tiles. ready(round): called before a round, once the preceding kernels have
// finished; finish(round, section): with the shares of all warps in place.partial.
template <class RowOf, class Ready, class Finish>
__device__ inline void multiply_tiles(const Places& place, const Words* w, const float* wscale, const void* q, const float* scale,
                                      const int* qsum, const float* squares, const Rows& rows, u32 width, RowOf row_of, Ready ready,
                                      Finish finish) {
    Piece pieces[TOGETHER], next[TOGETHER];
    auto load = [&](Piece (&to)[TOGETHER], u32 r) {
#pragma unroll
        for (u32 p = 0; p < TOGETHER; p++) to[p].load(Columns(width, r / ROUNDS), w, r % ROUNDS * TOGETHER + p, row_of);
    };
#if NORMED
    __shared__ Inverses inverses;
    auto tokens_of = [&](u32 tile) { return Tokens(place.tile(tile), inverses, 8 * tile); };
#else
    auto tokens_of = [&](u32 tile) { return Tokens(place.tile(tile)); };
#endif
    auto copy = [&](u32 span, u32 tile) {
        u32 first = min(8 * tile, rows.count);
        if (span < SPANS)
            tokens_of(tile).start(Columns(width, span), rows.part((const char*)q, width) + (size_t)first * width,
                                  (const char*)(rows.part(scale, width / 32) + first * (width / 32)),
                                  (const char*)(rows.part(qsum, width / 32) + first * (width / 32)), rows.count - first);
        copy_group();
    };
    let_next_start();
    load_scales(Columns(width, 0), place.scales, wscale, width, row_of);
    load(pieces, 0);
    if (SPANS * ROUNDS > 1) load(next, 1);
    wait_for_previous();
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) copy(0, tile);
#if NORMED
    inverses.find(rows.part(squares, width / 32), rows.count, width);
#endif
    copy_wait<TILES>();  // the scales of weights
    __syncthreads();
#pragma unroll 1
    for (u32 r = 0; r < SPANS * ROUNDS; r++) {
        u32 span = r / ROUNDS, round = r % ROUNDS;
        Columns columns(width, span);
        bool begins = span % STEPS == 0, ends = span % STEPS == STEPS - 1;
        if (r > 0) {
#pragma unroll
            for (u32 p = 0; p < TOGETHER; p++) pieces[p] = next[p];
            if (r + 1 < SPANS * ROUNDS) load(next, r + 1);
        }
        if (span / STEPS == SECTIONS - 1) ready(round);
#pragma unroll
        for (u32 p = 0; p < TOGETHER; p++)
            for (int j = 0; j < 2; j++) pieces[p].codes[j] = regrouped(pieces[p].codes[j]);
#pragma unroll 1
        for (u32 tile = 0; tile < TILES; tile++) {
            copy_wait<TILES - 1>();  // a group follows after each tile
            if (8 * tile < rows.count) {
                Tokens tokens = tokens_of(tile);
                if (round == 0) prepare(tokens, columns, 8 * tile, rows.count);
                Floats value[TOGETHER];
                for (u32 p = 0; p < TOGETHER; p++) hide(pieces[p]);
                multiply_tile(value, tokens, pieces, place.scales + 16 * TOGETHER * PITCH * round + columns.own());
                Floats* to = (Floats*)(place.partial + threadIdx.x / 32 * ROUND_SUMS + tile * TILE_SUMS) + threadIdx.x % 32;
#pragma unroll
                for (u32 p = 0; p < TOGETHER; p++) leave(to[32 * p], value[p], begins);
            }
            if (round == ROUNDS - 1) sync_warp();  // all lanes have read the tile
            copy(round == ROUNDS - 1 ? span + 1 : SPANS, tile);
        }
        if (!ends) continue;
        __syncthreads();
        finish(round, span / STEPS);
        if (r + 1 < SPANS * ROUNDS) __syncthreads();
    }
}

// Sum i of ROUND_SUMS of a round: its weight row among the block's, and its token.
struct TilePlace {
    u32 row, token;

    __device__ TilePlace(u32 i, u32 round) {
        Place of(i % TILE_SUMS);
        row = 16 * TOGETHER * round + of.row, token = i / TILE_SUMS * 8 + of.token;
    }
};

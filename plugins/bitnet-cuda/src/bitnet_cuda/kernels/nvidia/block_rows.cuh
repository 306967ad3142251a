// One to eight rows of activations times weights with block scales, on tensor cores: out[n, t] = sum over blocks b of
// 128 columns of wscale[n, 128 b / BLOCK] * (sum over planes s of scale[t, 4 b + s] * (sum of code[n, k] * q[t, k] over
// the plane's 32 columns, exact) - sum over s of scale[t, 4 b + s] * qsum[t, 4 b + s]).
// Weight rows are processed in PIECES of 16, DEPTH of them in flight to registers before the preceding kernels have
// finished. Warps share the columns, 256 each in STEPS steps, and SPLITS blocks share them too: the order of an output's
// sum does not depend on the number of rows of activations.
// A fragment is a word and a mask, so planes keep their factors 64, 16, 4 and 1; sums start at the bits of BIAS, so
// that a subtraction replaces a conversion, which has half its rate.
#define SECTIONS 1
#include "block_shares.cuh"
#include "ahead.cuh"
#define SUMS (PIECES * 128)  // sums of a warp, and of a block

// This lane's activations: columns of token lane / 4 to multiply, scales of tokens 2 (lane % 4) and the next.
struct Activations {
    Pair q[2][4];
    float factor[2][4][2];  // of block, plane and token
    float minus[2][2];      // minus_of each block and token

    __device__ void load(const Columns& columns, const Tokens& tokens, u32 rows) {
        u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int b = 0; b < 2; b++) {
            bool there = columns.block() + b < columns.all;
#pragma unroll
            for (int s = 0; s < 4; s++)
                q[b][s] = there && g < rows ? ((const Pair*)(tokens.q + g * 288))[16 * b + 4 * s + t % 2 * 2 + t / 2] : Pair{0, 0};
#pragma unroll
            for (int e = 0; e < 2; e++) {
                u32 i = 4 * t + 2 * e + b;
                Floats f = ((const Floats*)tokens.scale)[i];
                factor[b][0][e] = f.x, factor[b][1][e] = f.y, factor[b][2][e] = f.z, factor[b][3][e] = f.w;
                minus[b][e] = ((const float*)tokens.qsum)[4 * i];
            }
        }
    }
};

// Replaces the scales of this warp's activations of a step by the factors of their planes, and the sums of codes by what
// the sums of the block start from.
__device__ inline void prepare(const Columns& columns, const Tokens& tokens, u32 rows) {
    u32 lane = threadIdx.x % 32, token = lane % 16 / 2, b = lane % 2;
    bool used = columns.block() + b < columns.all && token < rows;
    Floats f = used ? tokens.scales(token, b) : Floats{0.0f, 0.0f, 0.0f, 0.0f};
    Integers sum = used ? ((const Integers*)tokens.qsum)[lane % 16] : Integers{0, 0, 0, 0};
    sync_warp();
    if (lane < 16) {
        ((Floats*)tokens.scale)[lane] = {f.x * (1.0f / 64.0f), f.y * (1.0f / 16.0f), f.z * (1.0f / 4.0f), f.w};
        ((float*)tokens.qsum)[4 * lane] = minus_of(f, sum);
    }
    sync_warp();
}

// Returns the warp's share of the piece: rows g and g + 8, tokens 2 t and 2 t + 1. weights: in shared memory, scales
// of the piece's rows from the warp's first block on.
__device__ inline Floats multiply(const Piece& piece, const Activations& x, const float* weights) {
    Words low = regrouped(piece.codes[0]), high = regrouped(piece.codes[1]);
    u32 g = threadIdx.x % 32 / 4;
    Two of_low = *(const Two*)(weights + g * PITCH), of_high = *(const Two*)(weights + (g + 8) * PITCH);
    float value[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int b = 0; b < 2; b++) {
        float sum[4] = {x.minus[b][0], x.minus[b][1], x.minus[b][0], x.minus[b][1]};
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const u32 mask = 0x03030303u << (6 - 2 * s);
            u32 a[4] = {(b ? low.z : low.x) & mask, (b ? high.z : high.x) & mask, (b ? low.w : low.y) & mask, (b ? high.w : high.y) & mask};
            int c[4];
            mma_from(BIAS_BITS, c, a, x.q[b][s].a, x.q[b][s].b);
#pragma unroll
            for (int r = 0; r < 4; r++) sum[r] = fmaf(__uint_as_float(c[r]) - BIAS, x.factor[b][s][r % 2], sum[r]);
        }
#pragma unroll
        for (int r = 0; r < 4; r++) value[r] = fmaf(b ? (r / 2 ? of_high.b : of_low.b) : (r / 2 ? of_high.a : of_low.a), sum[r], value[r]);
    }
    return {value[0], value[1], value[2], value[3]};
}

// Computes the shares of all warps in the sums of the block's rows, partial[WARPS][ROOM], in the place of each warp's
// activations; scales: PITCH per row. Both are in shared memory. ready(): called once the preceding kernels have
// finished. squares: of the groups of 32 columns if NORMED, whose `scale` is the largest of each group. ahead: prefetched
// once the weight scales have arrived, so that the block's own loads do not wait behind it.
template <class RowOf, class Ready>
__device__ inline void multiply_rows(float* partial, float* scales, const Words* w, const float* wscale, const void* q, const float* scale,
                                     const int* qsum, const float* squares, u32 rows, u32 width, RowOf row_of, const Ahead& ahead, Ready ready) {
    Piece pieces[DEPTH];
    auto load = [&](u32 i) { pieces[i % DEPTH].load(Columns(width, i / PIECES), w, i % PIECES, row_of); };
    let_next_start();
    load_scales(Columns(width, 0), scales, wscale, width, row_of);
#pragma unroll
    for (u32 i = 0; i < DEPTH; i++) load(i);
    wait_for_previous();
    float* own = partial + threadIdx.x / 32 * ROOM;
#if NORMED
    __shared__ Inverses inverses;
    auto tokens_of = [&](u32 step) { return Tokens(own + step * TOKEN_FLOATS, inverses); };
#else
    auto tokens_of = [=](u32 step) { return Tokens(own + step * TOKEN_FLOATS); };
#endif
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        tokens_of(step).start(Columns(width, step), (const char*)q, (const char*)scale, (const char*)qsum, rows);
        copy_group();
    }
    ready();
#if NORMED
    inverses.find(squares, rows, width);
#endif
    copy_wait<STEPS>();
    __syncthreads();
    ahead.load();
    Activations x;
    Floats* to = (Floats*)own + threadIdx.x % 32;
#if STEPS > 1
    Floats sum[PIECES] = {};
#pragma unroll
    for (u32 i = 0; i < STEPS * PIECES; i++) {
        Columns columns(width, i / PIECES);
        if (i % PIECES == 0) {
            u32 later = STEPS - 1 - columns.step;
            if (later > 2) copy_wait<3>();
            if (later == 2) copy_wait<2>();
            if (later == 1) copy_wait<1>();
            if (later == 0) copy_wait<0>();
            sync_warp();
            prepare(columns, tokens_of(columns.step), rows);
            x.load(columns, tokens_of(columns.step), rows);
        }
        Floats value = multiply(pieces[i % DEPTH], x, scales + 16 * PITCH * (i % PIECES) + columns.own());
        Floats& all = sum[i % PIECES];
        all.x += value.x, all.y += value.y, all.z += value.z, all.w += value.w;
        if (i + DEPTH < STEPS * PIECES) load(i + DEPTH);
    }
    sync_warp();
#pragma unroll
    for (u32 p = 0; p < PIECES; p++) to[32 * p] = sum[p];
#else
    copy_wait<0>();
    sync_warp();
    prepare(Columns(width, 0), tokens_of(0), rows);
    x.load(Columns(width, 0), tokens_of(0), rows);
    sync_warp();
    const float* own_scales = scales + Columns(width, 0).own();
#pragma unroll 1
    for (u32 p = 0; p < PIECES; p += DEPTH)
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) {
            if (PIECES % DEPTH && p + d >= PIECES) break;
            to[32 * (p + d)] = multiply(pieces[d], x, own_scales + 16 * PITCH * (p + d));
#if JOINED || NORMED  // the compiler's code differs, and was measured with this form here and with the other elsewhere
            u32 next = p + d + DEPTH;
            if (next < PIECES) pieces[d].load(Columns(width, 0), w, next, row_of);
#else
            if (p + d + DEPTH < PIECES) pieces[d].load(Columns(width, 0), w, p + d + DEPTH, row_of);
#endif
        }
#endif
    __syncthreads();
}

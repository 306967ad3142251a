// Replaces approximate logits that may be among the k largest (open_logits.cuh) by sums over w f16[outs, width], a warp
// each. A lane loads twice WORDS columns at a time.
#include "prelude.cuh"
#include "open_logits.cuh"

#define PIECES 10  // loads of a row that a lane has in flight

struct alignas(4 * WORDS) Piece {
    u32 word[WORDS];
};

struct alignas(8) Pair {
    float x, y;
};

// Returns sum_k w[k] x[k] of a warp, with PIECES loads of a lane in flight.
__device__ inline float exact_logit(const Piece* w, const Pair* x, u32 pieces) {
    float sum = 0.0f;
    for (u32 start = threadIdx.x % 32; start < pieces; start += 32 * PIECES) {
        Piece piece[PIECES];
        load_batch(piece, w, start, 32, pieces);
#pragma unroll
        for (int i = 0; i < PIECES; i++) {  // no branch, since the compiler moves loads behind a branch
            u32 c = start + 32 * i;
#pragma unroll
            for (int j = 0; j < WORDS; j++) {
                u32 pair = c < pieces ? piece[i].word[j] : 0;
                Pair v = c < pieces ? x[c * WORDS + j] : Pair{0.0f, 0.0f};
                sum += half_to_float((u16)pair) * v.x + half_to_float((u16)(pair >> 16)) * v.y;
            }
        }
    }
    return warp_sum(sum);
}

KERNEL_RESIDENT(2) refine_logits(const float* x, const u16* w, const float* error, const float* bound, float* logits, u32 rows,
                      u32 outs, u32 width, u32 stride, u32 k) {
    __shared__ u16 open[TILE_N];
    u32 found = open_logits(open, x, error, bound, logits, outs, width, stride, k);
    const float* in = x + (size_t)blockIdx.y * width;
    for (u32 i = threadIdx.x / 32; i < found; i += GROUP / 32) {
        u32 n = blockIdx.x * TILE_N + open[i];
        float sum = exact_logit((const Piece*)(w + (size_t)n * width), (const Pair*)in, width / (2 * WORDS));
        if (threadIdx.x % 32 == 0) logits[(size_t)blockIdx.y * stride + n] = sum;
    }
}

// Combines the results of blocks that share a row's positions. Each block leaves (largest score, sum of weights, -, -,
// weighted values[DIM]) per head in the workspace (meeting.cuh). Requires H (the heads of a block), DIM and SPLITS.
#include "meeting.cuh"

#define PART (DIM + 4)

// Returns the weight of a part relative to the largest score of all parts. A part without positions has sum 0; NaN is
// not equal to zero.
__device__ inline float share(float top, float total, float top_of_all) {
    return total == 0.0f ? 0.0f : top == top_of_all ? 1.0f : expf(top - top_of_all);
}

__device__ inline float* attention_part(u32* workspace, size_t head, u32 split) {
    return meeting_parts(workspace) + (head * SPLITS + split) * PART;
}

#define PIECE (DIM % 4 == 0 ? 4 : 1)                 // elements that a thread combines
#define JOINERS 4                                    // neighbouring threads that share the parts of a piece
#define MOST_MINE ((SPLITS + JOINERS - 1) / JOINERS)  // parts of one of these threads

struct alignas(4 * PIECE) Joined {
    float of[PIECE];
};
__device__ inline float over_joiners(float v, bool largest) {
    for (int d = 1; d < JOINERS; d *= 2) {
        float other = shuffle_xor(v, d);
        v = largest ? fmaxf(v, other) : v + other;
    }
    return v;
}

// Writes out of heads first_head .. first_head + H - 1 (counted over all rows) from their parts, which are all loaded
// at once.
__device__ inline void join_parts(u32* workspace, size_t first_head, u32 splits, float* out) {
    for (u32 base = 0; base < H * DIM / PIECE; base += GROUP / JOINERS) {
        u32 i = base + threadIdx.x / JOINERS, piece = min(i, (u32)(H * DIM / PIECE - 1)), at = piece % (DIM / PIECE) * PIECE;
        size_t head = first_head + piece / (DIM / PIECE);
        float tops[MOST_MINE], totals[MOST_MINE], top = minus_infinity(), total = 0.0f;
        Joined values[MOST_MINE], sum = {};
#pragma unroll
        for (int s = 0; s < MOST_MINE; s++) {
            u32 split = s * JOINERS + threadIdx.x % JOINERS;
            const float* part = attention_part(workspace, head, min(split, splits - 1));
            tops[s] = part[0];
            totals[s] = split < splits ? part[1] : 0.0f;
            values[s] = *(const Joined*)(part + 4 + at);
        }
#pragma unroll
        for (int s = 0; s < MOST_MINE; s++) top = fmaxf(top, tops[s]);
        top = over_joiners(top, true);
#pragma unroll
        for (int s = 0; s < MOST_MINE; s++) {
            float weight = share(tops[s], totals[s], top);
            total += totals[s] * weight;
#pragma unroll
            for (int k = 0; k < PIECE; k++) sum.of[k] += totals[s] == 0.0f ? 0.0f : values[s].of[k] * weight;
        }
        total = over_joiners(total, false);
#pragma unroll
        for (int k = 0; k < PIECE; k++) sum.of[k] = over_joiners(sum.of[k], false) / total;
        if (i == piece && threadIdx.x % JOINERS == 0) *(Joined*)(out + head * DIM + at) = sum;
    }
}

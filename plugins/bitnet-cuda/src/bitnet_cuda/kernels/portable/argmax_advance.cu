// Greedy sampling: token[l] = the lowest index of the largest logit of row l that the mask allows, or -1 if an allowed
// logit is NaN or no token is allowed. The token of each used row is written to history and step, and the row advances
// by one position; it becomes unused if the token is -1 or no block is left.
// SPLITS <= 32 blocks share the logits of a row (grid z); the last to finish combines their results (meeting.cuh). The
// row's position is read before the preceding kernels have finished.
#include "prelude.cuh"
#include "bounds.cuh"
#include "mask.cuh"
#include "meeting.cuh"

#define BATCH 8  // logits that a thread loads at once

// A logit's order and its complemented index: the larger pair wins, and NaN wins over every number.
struct Best {
    u32 order, index;
};

// Returns the best pair of a warp, in all lanes.
__device__ inline Best warp_best(Best best) {
    u32 order = warp_max_bits(best.order);
    return {order, warp_max_bits(best.order == order ? best.index : 0)};
}

// Returns the best pair of the block, in all threads of its first warp.
__device__ inline Best block_best(Best best) {
    __shared__ Best of_warp[GROUP / 32];
    best = warp_best(best);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = best;
    __syncthreads();
    return warp_best(of_warp[min(threadIdx.x, (u32)(GROUP / 32 - 1))]);
}

KERNEL argmax_advance(const float* logits, const u32* mask, const int* index, const int* tables, Row* step, int* history,
                      u32* workspace, u32 rows, u32 vocab, u32 stride, u32 max_blocks, u32 ring) {
    u32 l = blockIdx.x, split = blockIdx.z;
    let_next_start();
    u32 r = (u32)index[l];
    Row now = step[r];
    u32 position = (u32)now.position + 1, column = position / KV_BLOCK;
    int block = column < max_blocks ? tables[(size_t)now.sequence * max_blocks + column] : -1;
    int* past = history + (size_t)r * (ring + 1);
    int chosen = past[0] + 1;
    wait_for_previous();
    if (now.position < 0) return;
    Best best = {0, 0};
    u32 each = (vocab + SPLITS - 1) / SPLITS, end = min(vocab, (split + 1) * each);
    for (u32 start = split * each + threadIdx.x; start < end; start += BATCH * GROUP) {
        float v[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) v[i] = logits[(size_t)l * stride + min(start + i * GROUP, end - 1)];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            u32 n = start + i * GROUP, order = order_of(v[i]);
            if (n < end && allowed(mask, l, vocab, n) && order > best.order) best = {order, ~n};
        }
    }
    best = block_best(best);
    if (SPLITS > 1) {
        Best* parts = (Best*)meeting_parts(workspace) + (size_t)l * SPLITS;
        if (threadIdx.x == 0) parts[split] = best;
        if (!last_to_arrive(workspace, l, SPLITS)) return;
        best = warp_best(parts[min(threadIdx.x, (u32)(SPLITS - 1))]);
    }
    if (threadIdx.x != 0) return;
    int token = best.order == NOT_A_NUMBER ? -1 : (int)~best.index;  // index -1: no token was allowed
    past[0] = chosen;
    if (chosen >= 1 && (u32)chosen <= ring) past[chosen] = token;
    if (token < 0 || block < 0)
        step[r] = Row{token, -1, -1, now.sequence};
    else
        step[r] = Row{token, (int)position, block * KV_BLOCK + (int)(position % KV_BLOCK), now.sequence};
}

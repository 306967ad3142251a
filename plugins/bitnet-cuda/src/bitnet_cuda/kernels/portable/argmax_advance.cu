// The greedy token (lowest index of the largest logit among those that the mask allows, -1 if any of these is NaN or there
// are none) of each used row goes into history and step, and the row moves on by one position; it becomes unused when the
// token is -1 or no block is left. SPLITS blocks share the logits of a row (z); the last of them finishes: see meeting.cuh.
#include "prelude.cuh"
#include "mask.cuh"
#include "meeting.cuh"

struct Best {
    float value;
    u32 index, bad;  // bad: a NaN was seen
};

__device__ inline Best better(Best a, Best b) {
    bool second = b.value > a.value || (b.value == a.value && b.index < a.index);
    return {second ? b.value : a.value, second ? b.index : a.index, a.bad | b.bad};
}

// The best of the whole block, in thread 0.
__device__ inline Best block_best(Best best) {
    __shared__ Best of_warp[GROUP / 32];
    for (int d = 16; d > 0; d >>= 1)
        best = better(best, {shuffle_xor(best.value, d), shuffle_xor(best.index, d),
                             shuffle_xor(best.bad, d)});
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < GROUP / 32; i++) best = better(best, of_warp[i]);
    return best;
}

KERNEL argmax_advance(const float* logits, const u32* mask, const int* index, const int* tables, Row* step, int* history,
                      u32* workspace, u32 rows, u32 vocab, u32 stride, u32 max_blocks, u32 ring) {
    u32 l = blockIdx.x, split = blockIdx.z;
    let_next_start();
    wait_for_previous();
    u32 r = (u32)index[l];
    Row now = step[r];
    if (now.position < 0) return;
    Best best = {minus_infinity(), 0xffffffffu, 0};
    u32 each = (vocab + SPLITS - 1) / SPLITS, end = min(vocab, (split + 1) * each);
#pragma unroll 8
    for (u32 i = split * each + threadIdx.x; i < end; i += GROUP) {
        if (!allowed(mask, l, vocab, i)) continue;
        float v = logits[(size_t)l * stride + i];
        best = better(best, {is_nan(v) ? minus_infinity() : v, i, is_nan(v)});
    }
    best = block_best(best);
    if (SPLITS > 1) {
        Best* parts = (Best*)meeting_parts(workspace) + (size_t)l * SPLITS;
        if (threadIdx.x == 0) parts[split] = best;
        if (!last_to_arrive(workspace, l, SPLITS)) return;
        best = threadIdx.x < SPLITS ? parts[threadIdx.x] : Best{minus_infinity(), 0xffffffffu, 0};
        best = block_best(best);
    }
    if (threadIdx.x != 0) return;
    int token = best.bad ? -1 : (int)best.index;  // -1 as an index: none was allowed
    int* past = history + (size_t)r * (ring + 1);
    int chosen = past[0] + 1;
    past[0] = chosen;
    if (chosen >= 1 && (u32)chosen <= ring) past[chosen] = token;
    u32 position = (u32)now.position + 1, column = position / KV_BLOCK;
    int block = column < max_blocks ? tables[(size_t)now.sequence * max_blocks + column] : -1;
    if (token < 0 || block < 0)
        step[r] = Row{token, -1, -1, now.sequence};
    else
        step[r] = Row{token, (int)position, block * KV_BLOCK + (int)(position % KV_BLOCK), now.sequence};
}

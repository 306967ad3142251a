// The greedy token (lowest index of the largest logit, -1 if any is NaN) of each used row goes into history and step,
// and the row moves on by one position; it becomes unused when the token is -1 or no block is left. One block per row.
#include "prelude.cuh"

__device__ inline bool better(float v, u32 i, float best, u32 best_i) { return v > best || (v == best && i < best_i); }

KERNEL argmax_advance(const float* logits, const int* index, const int* tables, Row* step, int* history, u32 rows,
                      u32 vocab, u32 max_blocks, u32 ring) {
    __shared__ float values[GROUP / 32];
    __shared__ u32 indices[GROUP / 32], nans[GROUP / 32];
    u32 l = blockIdx.x, r = (u32)index[l];
    Row now = step[r];
    if (now.position < 0) return;
    float value = minus_infinity();
    u32 best = 0xffffffffu, bad = 0;
    for (u32 i = threadIdx.x; i < vocab; i += GROUP) {
        float v = logits[(size_t)l * vocab + i];
        if (is_nan(v)) bad = 1;
        else if (better(v, i, value, best)) {
            value = v;
            best = i;
        }
    }
    for (int d = 16; d > 0; d >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, value, d);
        u32 other_i = __shfl_xor_sync(0xffffffffu, best, d);
        bad |= __shfl_xor_sync(0xffffffffu, bad, d);
        if (better(other, other_i, value, best)) {
            value = other;
            best = other_i;
        }
    }
    if (threadIdx.x % 32 == 0) {
        values[threadIdx.x / 32] = value;
        indices[threadIdx.x / 32] = best;
        nans[threadIdx.x / 32] = bad;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < GROUP / 32; i++) {
        bad |= nans[i];
        if (better(values[i], indices[i], value, best)) {
            value = values[i];
            best = indices[i];
        }
    }
    int token = bad ? -1 : (int)best;
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

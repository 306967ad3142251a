// The parts of attention_parts.cuh, stored and combined with few instructions: a warp has a head, a lane FOURS groups
// of four of its elements, and the last warp to arrive combines a head. With every thread of a block on a share of each
// part, instructions took longer than all memory accesses.
#if JOINED
#include "joined_codes.cuh"
#endif
#define FOURS ((DIM + 127) / 128)
#define MOST (16 / FOURS)  // parts loaded at once

// A block's part of a head: a lane's elements, and the head's largest score and sum of weights.
struct Part {
    Floats sum[FOURS];
    float top, total;
};

__device__ inline void add(Floats& sum, const Floats& v, float weight) {
    sum.x += v.x * weight, sum.y += v.y * weight, sum.z += v.z * weight, sum.w += v.w * weight;
}

// The groups of four of a lane; it repeats its last one if the head has no more.
__device__ inline u32 four_of(int i) { return min(threadIdx.x % 32 + 32 * i, DIM / 4 - 1u); }
__device__ inline bool has_four(int i) { return threadIdx.x % 32 + 32 * i < DIM / 4; }

// The outputs: heads as f32, and their codes if JOINED (heads of 128 elements).
struct Output {
    float* heads;
#if JOINED
    Quantized codes;
#endif

    // head: counted over all rows.
    __device__ void write(size_t head, const Floats (&sum)[FOURS], float total) const {
        float inverse = 1.0f / total;
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            Floats v = {sum[i].x * inverse, sum[i].y * inverse, sum[i].z * inverse, sum[i].w * inverse};
            if (has_four(i)) ((Floats*)(heads + head * DIM))[four_of(i)] = v;
#if JOINED
            codes.store(head * (DIM / 4) + four_of(i), v, true);
#endif
        }
    }
    __device__ void clear(size_t head) const {
        Floats none[FOURS] = {};
        write(head, none, 1.0f);
    }
};

// Returns true for the last of `splits` warps that leave a part of this head (counted over all rows); see meeting.cuh.
__device__ inline bool last_to_leave(u32* workspace, size_t head, u32 split, u32 splits, const Part& part) {
    Floats* to = (Floats*)attention_part(workspace, head, split);
    u32 lane = threadIdx.x % 32, before = 0;
#pragma unroll
    for (int i = 0; i < FOURS; i++)
        if (has_four(i)) to[1 + four_of(i)] = part.sum[i];
    if (lane == 0) to[0] = {part.top, part.total, 0.0f, 0.0f};
    settle();
    sync_warp();
    if (lane == 0) {
        before = arrive(workspace + head);
        if (before == splits - 1) workspace[head] = 0;
    }
    before = warp_max_bits(before);
    sync_warp();
    settle();
    return before == splits - 1;
}

// weights: in shared memory, of the warp.
__device__ inline void join_head(u32* workspace, size_t head, u32 splits, float* weights, const Output& out) {
    u32 lane = threadIdx.x % 32;
    const float *parts = attention_part(workspace, head, 0), *mine = parts + min(lane, splits - 1) * PART;
    float top = mine[0], own = lane < splits ? mine[1] : 0.0f, total;
    Floats sum[FOURS];
#pragma unroll
    for (int k = 0; k < FOURS; k++) sum[k] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 first = 0; first < splits; first += MOST) {
        Floats values[MOST][FOURS];
#pragma unroll
        for (u32 i = 0; i < MOST * FOURS; i++) {
            if (FRESH > 1) values[i / FOURS][i % FOURS] = {0.0f, 0.0f, 0.0f, 0.0f};  // else registers hold it over the turns
            if (first + i / FOURS < splits)
                values[i / FOURS][i % FOURS] = ((const Floats*)(parts + (first + i / FOURS) * PART))[1 + four_of(i % FOURS)];
        }
        if (first == 0) {
            float weight = share(top, own, warp_max(top));
            weights[lane] = weight;
            total = warp_sum(own * weight);
            sync_warp();
        }
#pragma unroll
        for (u32 i = 0; i < MOST * FOURS; i++)
            if (first + i / FOURS < splits) add(sum[i % FOURS], values[i / FOURS][i % FOURS], weights[first + i / FOURS]);
    }
    out.write(head, sum, total);
}

// The parts of attention_parts.cuh, left and put together by few instructions: a warp has a head, a lane four of its elements, and the
// last warp to come puts a head together. Where every thread of a block had a share of each part, its instructions took longer than
// all of memory.
#define MOST 16  // parts asked for at once

// What a block has of a head: a lane's elements, and the head's largest score and sum of weights.
struct Part {
    Floats sum;
    float top, total;
};

__device__ inline void add(Floats& sum, const Floats& v, float weight) {
    sum.x += v.x * weight, sum.y += v.y * weight, sum.z += v.z * weight, sum.w += v.w * weight;
}

__device__ inline void write_head(float* head, const Floats& sum, float total) {
    u32 lane = threadIdx.x % 32;
    float inverse = 1.0f / total;
    if (lane < DIM / 4) ((Floats*)head)[lane] = {sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse};
}

// True for the last of `splits` warps that leave a part of this head (counted over all rows); see meeting.cuh.
__device__ inline bool last_to_leave(u32* workspace, size_t head, u32 split, u32 splits, const Part& part) {
    Floats* to = (Floats*)attention_part(workspace, head, split);
    u32 lane = threadIdx.x % 32, before = 0;
    if (lane < DIM / 4) to[1 + lane] = part.sum;
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

// weights: of the warp, shared.
__device__ inline void join_head(u32* workspace, size_t head, u32 splits, float* weights, float* out) {
    u32 lane = threadIdx.x % 32, four = min(lane, DIM / 4 - 1u);
    const float *parts = attention_part(workspace, head, 0), *mine = parts + min(lane, splits - 1) * PART;
    float top = mine[0], own = lane < splits ? mine[1] : 0.0f, total;
    Floats sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 first = 0; first < splits; first += MOST) {
        Floats values[MOST];
#pragma unroll
        for (u32 i = 0; i < MOST; i++)
            if (first + i < splits) values[i] = ((const Floats*)(parts + (first + i) * PART))[1 + four];
        if (first == 0) {
            float weight = share(top, own, warp_max(top));
            weights[lane] = weight;
            total = warp_sum(own * weight);
            sync_warp();
        }
#pragma unroll
        for (u32 i = 0; i < MOST; i++)
            if (first + i < splits) add(sum, values[i], weights[first + i]);
    }
    write_head(out + head * DIM, sum, total);
}

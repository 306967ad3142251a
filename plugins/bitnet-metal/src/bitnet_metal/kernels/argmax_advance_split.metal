// argmax_advance with SPLITS threadgroups per row, each over a part of the logits, and one more that merges their
// results. workspace u32[rows, SPLITS, 2]: key and token; other shapes as in argmax_advance.metal.
#include "numbers.h"
#include "logits.h"
#include "greedy.h"
kernel void argmax_advance_split(device const float *logits [[buffer(0)]], device const uint *mask [[buffer(1)]],
                                 device const int *index [[buffer(2)]], device const int *tables [[buffer(3)]],
                                 device int4 *step [[buffer(4)]], device int *history [[buffer(5)]],
                                 device uint2 *workspace [[buffer(6)]], constant Params &p [[buffer(7)]],
                                 uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint2 room[32];
    Row row = {logits + group.x * p.stride, mask + group.x * ((p.vocab + 31) / 32)};
    uint part = (p.vocab + SPLITS - 1) / SPLITS, begin = group.z * part;
    uint2 found = best_of_group(best_between(row, begin, min(begin + part, p.vocab), tid), room, tid);
    if (tid == 0) workspace[group.x * SPLITS + group.z] = found;
}

kernel void argmax_advance_merge(device const float *logits [[buffer(0)]], device const uint *mask [[buffer(1)]],
                                 device const int *index [[buffer(2)]], device const int *tables [[buffer(3)]],
                                 device int4 *step [[buffer(4)]], device int *history [[buffer(5)]],
                                 device uint2 *workspace [[buffer(6)]], constant Params &p [[buffer(7)]],
                                 uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint2 room[32];
    uint2 mine = tid < SPLITS ? workspace[group.x * SPLITS + tid] : uint2(0u, 0xffffffffu);
    uint2 found = best_of_group(mine, room, tid);
    uint r = uint(index[group.x]);
    if (tid == 0 && step[r].y >= 0) advance(found, r, tables, step, history, p);
}

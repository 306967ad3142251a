// Greedy sampling: the lowest index of the largest allowed logit of each row r = index[l] is written to step and
// history, and the row advances by one position. One threadgroup per row.
// logits f32[rows, stride]; mask i32[rows, ceil(vocab / 32)]; index i32[rows]; tables i32[sequences, max_blocks]; step
// i32[*, 4]; history i32[*, ring + 1].
#include "numbers.h"
#include "logits.h"
#include "greedy.h"
kernel void argmax_advance(device const float *logits [[buffer(0)]], device const uint *mask [[buffer(1)]],
                           device const int *index [[buffer(2)]], device const int *tables [[buffer(3)]],
                           device int4 *step [[buffer(4)]], device int *history [[buffer(5)]],
                           constant Params &p [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
                           uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint2 room[32];
    Row row = {logits + group.x * p.stride, mask + group.x * ((p.vocab + 31) / 32)};
    uint2 found = best_of_group(best_between(row, 0, p.vocab, tid), room, tid);
    uint r = uint(index[group.x]);
    if (tid == 0 && step[r].y >= 0) advance(found, r, tables, step, history, p);
}

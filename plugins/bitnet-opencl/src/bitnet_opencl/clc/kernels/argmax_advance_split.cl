// argmax_advance with SPLITS groups per row; the last to arrive compares all candidates. Shapes as in
// argmax_advance.cl; workspace: u32[rows] of arrivals (zero between launches), then {f32 value, u32 index}[rows *
// SPLITS].
#include "greedy.clh"

KERNEL argmax_advance_split(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, logits);
    AT_IN(int, mask);
    AT_IN(int, index);
    AT_IN(int, tables);
    AT_OUT(int, step);
    AT_OUT(int, history);
    AT_SHARED(uint, workspace);
    __local float best[GROUP];
    __local uint where[GROUP], arrived;
    const uint l = get_group_id(0), split = get_group_id(2), lid = get_local_id(0);
    const uint span = CEIL_DIV(vocab, (uint)SPLITS), start = split * span, end = min(start + span, vocab);
    best_logit(logits + (ulong)l * stride, mask + (ulong)l * CEIL_DIV(vocab, 32), start, end, best, where);
    volatile __global uint *found = workspace + rows + 2 * l * SPLITS;
    if (lid == 0) {
        found[2 * split] = as_uint(best[0]);
        found[2 * split + 1] = where[0];
        DEVICE_FENCE;
        arrived = atomic_inc(workspace + l);
        DEVICE_FENCE;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const bool last = arrived == SPLITS - 1;
    float value = -INFINITY;
    uint at = NOWHERE;
    if (last && lid < SPLITS) {  // SPLITS <= GROUP
        value = as_float(found[2 * lid]);
        at = found[2 * lid + 1];
    }
    group_best(value, at, best, where);
    if (!last || lid != 0) return;
    workspace[l] = 0;
    advance(best[0], where[0], index[l], tables, step, history, max_blocks, ring);
}

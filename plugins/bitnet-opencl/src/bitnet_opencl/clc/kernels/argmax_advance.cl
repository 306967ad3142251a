// Greedy sampling: token[l] = the lowest index of the largest logit of row l, among the allowed ones if MASK is 1; -1
// if an allowed logit is NaN or no token is allowed. The token is written to history and step; the row advances by one
// position, or becomes unused if it cannot.
// logits f32[rows, stride]; mask i32[rows, ceil(vocab / 32)]; index i32[rows]; tables i32[sequences, max_blocks]; step
// i32[*, 4]; history i32[*, ring + 1]. SPLITS == 1: one group per row.
#include "greedy.clh"

KERNEL argmax_advance(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, logits);
    AT_IN(int, mask);
    AT_IN(int, index);
    AT_IN(int, tables);
    AT_OUT(int, step);
    AT_OUT(int, history);
    __local float best[GROUP];
    __local uint where[GROUP];
    const uint l = get_group_id(0);
    best_logit(logits + (ulong)l * stride, mask + (ulong)l * CEIL_DIV(vocab, 32), 0, vocab, best, where);
    if (get_local_id(0) == 0) advance(best[0], where[0], index[l], tables, step, history, max_blocks, ring);
}

// Greedy token of each row (lowest index of the largest logit, -1 if any is NaN) into history and step; the row moves on
// by one position, or becomes unused where it cannot.
// logits f32[rows, vocab]; index i32[rows]; tables i32[sequences, max_blocks]; step i32[*, 4]; history i32[*, ring + 1].
// One group per row.
#include "greedy.clh"

GROUP __kernel void argmax_advance(IN(float, logits), IN(int, index), IN(int, tables), OUT(int, step),
                                   OUT(int, history), const uint rows, const uint vocab, const uint max_blocks,
                                   const uint ring) {
    AT_IN(float, logits);
    AT_IN(int, index);
    AT_IN(int, tables);
    AT_OUT(int, step);
    AT_OUT(int, history);
    __local float best[WG];
    __local uint where[WG];
    const uint l = get_group_id(0), lid = get_local_id(0);
    best_logit(logits + (ulong)l * vocab, 0, vocab, best, where);
    if (lid == 0) advance(isnan(best[0]) ? -1 : (int)where[0], index[l], tables, step, history, max_blocks, ring);
}

// Logits as integers in the same order: NaN is the largest, and masked logits are 0.
// logits f32[rows, stride]; mask i32[rows, ceil(vocab / 32)], used if MASK is 1.
#include "order.wgsl"

fn allowed(row: u32, token: u32) -> bool {
    if (MASK == 0u) { return true; }
    return ((bitcast<u32>(mask[row * ((p.vocab + 31u) / 32u) + token / 32u]) >> (token % 32u)) & 1u) == 1u;
}

fn key(row: u32, token: u32) -> u32 {
    if (!allowed(row, token)) { return 0u; }
    return ordered(logits[row * p.stride + token]);
}

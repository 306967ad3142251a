#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// Greedy sampling: token[l] = the lowest index of the largest logit of row l, among the allowed ones if MASK is 1; -1
// if an allowed logit is NaN or no token is allowed. The token of each used row is written to history and step, and the
// row advances by one position; it becomes unused if the token is -1 or no block is left.
layout(std430, binding = 0) readonly buffer Logits { float logits[]; };
layout(std430, binding = 1) readonly buffer Mask { uint mask[]; };
layout(std430, binding = 2) readonly buffer Index { int row_index[]; };
layout(std430, binding = 3) readonly buffer Tables { int tables[]; };
layout(std430, binding = 4) buffer Step { ivec4 step_[]; };
layout(std430, binding = 5) buffer History { int history[]; };
layout(push_constant) uniform Params { uint rows, vocab, stride, max_blocks, ring; } p;

bool allowed(uint l, uint i) { return MASK == 0 || (mask[l * ((p.vocab + 31) / 32) + i / 32] >> (i % 32) & 1u) != 0; }

shared float best_value[GROUP];
shared uint best_index[GROUP];
shared uint nan_seen[GROUP];

void main() {
    uint l = gl_WorkGroupID.x, r = uint(row_index[l]);
    if (step_[r].y < 0) return;
    float value = uintBitsToFloat(0xff800000u);
    uint index = 0xffffffffu, bad = 0;
    for (uint start = LID; start < p.vocab; start += GROUP * BATCH) {
        float v[BATCH];
        [[unroll]] for (uint b = 0; b < BATCH; b++) v[b] = logits[l * p.stride + min(start + b * GROUP, p.vocab - 1)];
        [[unroll]] for (uint b = 0; b < BATCH; b++) {
            uint i = min(start + b * GROUP, p.vocab - 1);
            if (!allowed(l, i)) continue;
            if (is_nan(v[b])) bad = 1;
            else if (v[b] > value || index == 0xffffffffu) { value = v[b]; index = i; }
        }
    }
    best_value[LID] = value;
    best_index[LID] = index;
    nan_seen[LID] = bad;
    barrier();
    for (uint s = GROUP / 2; s > 0; s >>= 1) {
        if (LID < s) {
            float other = best_value[LID + s];
            uint other_index = best_index[LID + s];
            if (other > best_value[LID] || (other == best_value[LID] && other_index < best_index[LID])) {
                best_value[LID] = other;
                best_index[LID] = other_index;
            }
            nan_seen[LID] |= nan_seen[LID + s];
        }
        barrier();
    }
    if (LID != 0) return;
    int token = nan_seen[0] != 0 ? -1 : int(best_index[0]);
    uint at = r * (p.ring + 1);
    int chosen = history[at] + 1;
    history[at] = chosen;
    if (chosen >= 1 && uint(chosen) <= p.ring) history[at + uint(chosen)] = token;
    uint position = uint(step_[r].y) + 1, column = position / KV_BLOCK;
    int block = column < p.max_blocks ? tables[uint(step_[r].w) * p.max_blocks + column] : -1;
    int sequence = step_[r].w;
    step_[r] = token < 0 || block < 0
        ? ivec4(token, -1, -1, sequence)
        : ivec4(token, int(position), block * int(KV_BLOCK) + int(position % KV_BLOCK), sequence);
}

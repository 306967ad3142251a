#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// argmax_advance with SPLITS workgroups per row; the last one to finish takes the best candidate and advances the row.
layout(std430, binding = 0) readonly buffer Logits { float logits[]; };
layout(std430, binding = 1) readonly buffer Mask { uint mask[]; };
layout(std430, binding = 2) readonly buffer Index { int row_index[]; };
layout(std430, binding = 3) readonly buffer Tables { int tables[]; };
layout(std430, binding = 4) buffer Step { ivec4 step_[]; };
layout(std430, binding = 5) buffer History { int history[]; };
layout(std430, binding = 6) coherent buffer Partial { uvec4 partial[]; };  // order of the largest, its index, whether NaN occurred
layout(std430, binding = 6) buffer Found { uvec4 found_[]; };  // the same, not coherent: read after a barrier with overlapping loads
layout(std430, binding = 6) coherent buffer Finished { uint finished[]; };  // after the candidates: the number of finished workgroups of a row
layout(push_constant) uniform Params { uint rows, vocab, stride, max_blocks, ring; } p;

const uint NO_INDEX = 0xffffffffu;
const uint FINISHED0 = 4 * ROOM * SPLITS;
shared uvec3 best[WAVES];
shared uint last_one;

bool allowed(uint l, uint i) { return MASK == 0 || (mask[l * ((p.vocab + 31) / 32) + i / 32] >> (i % 32) & 1u) != 0; }

// Returns an integer with the order of the floats; -0 equals +0.
uint order_of(float v) {
    uint bits = floatBitsToUint(v);
    return bits == 0x80000000u ? bits : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

uvec3 best_of_subgroup(uvec3 own) {
    uint order = subgroupMax(own.x);
    return uvec3(order, subgroupMin(own.x == order ? own.y : NO_INDEX), subgroupMax(own.z));
}

uvec3 better(uvec3 a, uvec3 b) {
    bool second = b.x > a.x || (b.x == a.x && b.y < a.y);
    return uvec3(second ? b.xy : a.xy, a.z | b.z);
}

void main() {
    uint l = gl_WorkGroupID.x, r = uint(row_index[l]), split = gl_WorkGroupID.z, share = (p.vocab + SPLITS - 1) / SPLITS;
    uint first = split * share, end = min(first + share, p.vocab);
    ivec4 step = step_[r];
    uint at = r * (p.ring + 1), position = uint(step.y) + 1, column = position / KV_BLOCK;  // loaded early for the end
    int chosen = history[at] + 1;
    int block = step.y >= 0 && column < p.max_blocks ? tables[uint(step.w) * p.max_blocks + column] : -1;
    uvec3 own = uvec3(0, NO_INDEX, 0);
    for (uint start = first + LID; start < end; start += GROUP * BATCH) {
        float v[BATCH];
        [[unroll]] for (uint b = 0; b < BATCH; b++) v[b] = logits[l * p.stride + min(start + b * GROUP, end - 1)];
        [[unroll]] for (uint b = 0; b < BATCH; b++)
            if (allowed(l, min(start + b * GROUP, end - 1)))
                own = better(own, is_nan(v[b]) ? uvec3(0, NO_INDEX, 1) : uvec3(order_of(v[b]), min(start + b * GROUP, end - 1), 0));
    }
    if (step.y < 0) return;
    own = best_of_subgroup(own);
    if (subgroupElect()) best[gl_SubgroupID] = own;
    barrier();
    if (LID == 0) {
        [[unroll]] for (uint i = 0; i < WAVES; i++) own = better(own, best[i]);
        partial[l * SPLITS + split] = uvec4(own, 0);
        memoryBarrierBuffer();
        last_one = atomicAdd(finished[FINISHED0 + l], 1);
    }
    barrier();
    if (last_one != SPLITS - 1 || gl_SubgroupID != 0) return;
    memoryBarrierBuffer();
    own = uvec3(0, NO_INDEX, 0);
    for (uint s = gl_SubgroupInvocationID; s < SPLITS; s += WAVE) own = better(own, found_[l * SPLITS + s].xyz);
    own = best_of_subgroup(own);
    if (!subgroupElect()) return;
    finished[FINISHED0 + l] = 0;
    int token = own.z != 0 ? -1 : int(own.y);
    history[at] = chosen;
    if (chosen >= 1 && uint(chosen) <= p.ring) history[at + uint(chosen)] = token;
    step_[r] = token < 0 || block < 0
        ? ivec4(token, -1, -1, step.w)
        : ivec4(token, int(position), block * int(KV_BLOCK) + int(position % KV_BLOCK), step.w);
}

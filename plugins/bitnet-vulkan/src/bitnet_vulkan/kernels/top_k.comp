#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// ids[l, i], values[l, i] = the k largest logits of row l in falling order, equal ones by rising index; NaN counts as the
// largest. One workgroup per row. The key of a logit is its order among floats and then its index from the end; the
// smallest key among the k largest is found 8 bits at a time by counting, then k keys are taken and sorted by their ranks.
layout(std430, binding = 0) readonly buffer Logits { float logits[]; };
layout(std430, binding = 1) writeonly buffer Ids { int ids[]; };
layout(std430, binding = 2) writeonly buffer Values { float values[]; };
layout(push_constant) uniform Params { uint rows, vocab, k; } p;

const uint MOST = 256;
shared uint counts[256], chosen, left, taken;
shared uvec2 keys[MOST];

uvec2 key_of(uint base, uint i) {
    float v = logits[base + i];
    uint bits = floatBitsToUint(v);
    if (bits == 0x80000000u) bits = 0;  // -0 and +0 are equal
    uint order = is_nan(v) ? 0xffffffffu : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return uvec2(order, 0xffffffffu - i);
}

// The bits of a key above `shift` (8..56 by 8; 64: none of them) as a pair.
uvec2 above(uvec2 key, uint shift) {
    if (shift >= 64) return uvec2(0);
    if (shift >= 32) return uvec2(key.x >> (shift - 32), 0);
    return uvec2(key.x, key.y >> shift);
}

bool at_least(uvec2 a, uvec2 b) { return a.x > b.x || (a.x == b.x && a.y >= b.y); }

void main() {
    uint l = gl_WorkGroupID.x, base = l * p.vocab, wanted = p.k, shift = 64;
    uvec2 prefix = uvec2(0);
    bool exact = false;
    while (!exact) {
        barrier();
        for (uint i = LID; i < 256; i += GROUP) counts[i] = 0;
        if (LID == 0) taken = 0;
        barrier();
        for (uint i = LID; i < p.vocab; i += GROUP) {
            uvec2 key = key_of(base, i);
            if (above(key, shift) != prefix) continue;
            uint next = shift - 8;
            atomicAdd(counts[(next >= 32 ? key.x >> (next - 32) : key.y >> next) & 255u], 1);
        }
        barrier();
        if (LID == 0) {
            uint bin = 255, larger = 0;
            while (larger + counts[bin] < wanted) larger += counts[bin--];
            chosen = bin;
            left = wanted - larger;
        }
        barrier();
        shift -= 8;
        wanted = left;
        prefix = shift >= 32 ? uvec2(prefix.x << 8 | chosen, 0) : uvec2(prefix.x, prefix.y << 8 | chosen);
        exact = counts[chosen] == wanted || shift == 0;
    }
    for (uint i = LID; i < p.vocab; i += GROUP) {
        uvec2 key = key_of(base, i);
        if (!at_least(above(key, shift), prefix)) continue;
        uint at = atomicAdd(taken, 1);
        if (at < MOST) keys[at] = key;
    }
    barrier();
    for (uint i = LID; i < p.k; i += GROUP) {
        uint rank = 0;
        for (uint j = 0; j < p.k; j++) rank += j != i && at_least(keys[j], keys[i]) ? 1 : 0;
        uint id = 0xffffffffu - keys[i].y;
        ids[l * p.k + rank] = int(id);
        values[l * p.k + rank] = logits[base + id];
    }
}

#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// ids[l, i], values[l, i] = the k largest logits of row l, among the allowed ones if MASK is 1, in descending order,
// equal ones by ascending index; NaN counts as the largest; padded with -1 and -Inf. total[l] = (m, log(sum exp(logit -
// m))) over the allowed ones, m their largest.
// One workgroup per row. The key of a logit is its order among floats, then its complemented index. The smallest of the
// k largest keys is found 8 bits at a time by counting; then the keys from there on are gathered and sorted by their
// ranks.
layout(std430, binding = 0) readonly buffer Logits { float logits[]; };
layout(std430, binding = 1) readonly buffer Mask { uint mask[]; };
layout(std430, binding = 2) writeonly buffer Ids { int ids[]; };
layout(std430, binding = 3) writeonly buffer Values { float values[]; };
layout(std430, binding = 4) writeonly buffer Total { vec2 total[]; };
layout(push_constant) uniform Params { uint rows, vocab, stride, k; } p;

const uint MOST = 256, LOWEST_BITS = 0xff800000u;  // -infinity
shared uint counts[256], chosen, left, taken;
shared uvec2 keys[MOST];

bool allowed(uint l, uint i) { return MASK == 0 || (mask[l * ((p.vocab + 31) / 32) + i / 32] >> (i % 32) & 1u) != 0; }

uvec2 key_of(uint base, uint i) {
    float v = logits[base + i];
    uint bits = floatBitsToUint(v);
    if (bits == 0x80000000u) bits = 0;  // -0 and +0 are equal
    uint order = is_nan(v) ? 0xffffffffu : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return uvec2(order, 0xffffffffu - i);
}

// The bits of a key above `shift` (8..56 by 8; 64: none) as a pair.
uvec2 above(uvec2 key, uint shift) {
    if (shift >= 64) return uvec2(0);
    if (shift >= 32) return uvec2(key.x >> (shift - 32), 0);
    return uvec2(key.x, key.y >> shift);
}

bool at_least(uvec2 a, uvec2 b) { return a.x > b.x || (a.x == b.x && a.y >= b.y); }

// The total of a row, and the number of its allowed logits.
uint sum_up(uint l, uint base) {
    float most = uintBitsToFloat(LOWEST_BITS), sum = 0.0, here = 0.0, bad = 0.0;
    for (uint i = LID; i < p.vocab; i += GROUP) {
        if (!allowed(l, i)) continue;
        float v = logits[base + i];
        here += 1.0;
        if (is_nan(v)) bad = 1.0;
        else most = max(most, v);
    }
    most = group_max(most);
    for (uint i = LID; i < p.vocab; i += GROUP)
        if (allowed(l, i)) sum += exp(logits[base + i] - most);
    sum = group_sum(sum);
    bad = group_max(bad);
    here = group_sum(here);  // exact, below 2^24
    bool lone = not_finite(most) && here > 0.0;  // avoids infinity minus infinity
    if (LID == 0)
        total[l] = vec2(bad > 0.0 ? uintBitsToFloat(NAN_BITS) : most, bad > 0.0 || lone ? uintBitsToFloat(NAN_BITS) : log(sum));
    return uint(here);
}

void main() {
    uint l = gl_WorkGroupID.x, base = l * p.stride, count = min(p.k, sum_up(l, base)), wanted = count, shift = 64;
    uvec2 prefix = uvec2(0);
    bool exact = count == 0;
    while (!exact) {
        barrier();
        for (uint i = LID; i < 256; i += GROUP) counts[i] = 0;
        barrier();
        for (uint i = LID; i < p.vocab; i += GROUP) {
            if (!allowed(l, i)) continue;
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
    if (LID == 0) taken = 0;
    barrier();
    for (uint i = LID; i < p.vocab && count > 0; i += GROUP) {
        if (!allowed(l, i)) continue;
        uvec2 key = key_of(base, i);
        if (!at_least(above(key, shift), prefix)) continue;
        uint at = atomicAdd(taken, 1);
        if (at < MOST) keys[at] = key;
    }
    barrier();
    for (uint i = LID; i < p.k; i += GROUP) {
        if (i >= count) {
            ids[l * p.k + i] = -1;
            values[l * p.k + i] = uintBitsToFloat(LOWEST_BITS);
            continue;
        }
        uint rank = 0;
        for (uint j = 0; j < count; j++) rank += j != i && at_least(keys[j], keys[i]) ? 1 : 0;
        uint id = 0xffffffffu - keys[i].y;
        ids[l * p.k + rank] = int(id);
        values[l * p.k + rank] = logits[base + id];
    }
}

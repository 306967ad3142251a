#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// logits[l,n] = sum_k x[l,k] w[n,k], w f16[N, K], f32 sums, for every n with approx + error[n] |x[l]| not below the
// k-th largest of bound[l]; for all n if that is NaN or if there are fewer than k bounds. Other approximate logits are
// unchanged.
// A workgroup checks TILE_N rows of w and lists those that qualify; its subgroups compute one after the other.
layout(std430, binding = 0) readonly buffer X { vec4 x[]; };
layout(std430, binding = 1) readonly buffer W { uvec2 w[]; };
layout(std430, binding = 2) readonly buffer Error { float error[]; };
layout(std430, binding = 3) readonly buffer Bound { float bound[]; };
layout(std430, binding = 4) buffer Logits { float logits[]; };
layout(push_constant) uniform Params { uint rows, outs, width, stride, k; } p;

const uint SIDE = 64;           // rows of a bound
const float SLACK = 1.000003;  // exceeds the error of a sum of squares in f32
shared uint open_rows[TILE_N], opened, spoiled, counts[256], chosen, left;

// Returns an integer with the order of the floats.
uint order_of(float v) {
    uint bits = floatBitsToUint(v);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

float value_of(uint order) { return uintBitsToFloat((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order); }

// Returns the k-th largest bound of a row, found 8 bits at a time by counting (k = 1: at once).
float threshold_of(uint l, uint groups) {
    uint base = l * groups, prefix = 0, wanted = p.k, largest = 0, bad = 0;
    for (uint i = LID; i < groups; i += GROUP) {
        float v = bound[base + i];
        if (is_nan(v)) bad = 1;
        largest = max(largest, order_of(v));
    }
    if (subgroupMax(bad) != 0 && subgroupElect()) spoiled = 1;
    float none = 0.0;
    group_sum_max(none, largest);
    if (spoiled != 0 || p.k > groups) return uintBitsToFloat(NAN_BITS);
    if (p.k == 1) return value_of(largest);
    for (uint shift = 32; shift > 0;) {
        barrier();
        for (uint i = LID; i < 256; i += GROUP) counts[i] = 0;
        barrier();
        shift -= 8;
        for (uint i = LID; i < groups; i += GROUP) {
            uint order = order_of(bound[base + i]);
            if (shift == 24 || order >> (shift + 8) == prefix) atomicAdd(counts[(order >> shift) & 255u], 1);
        }
        barrier();
        if (LID == 0) {
            uint bin = 255, larger = 0;
            while (larger + counts[bin] < wanted) larger += counts[bin--];
            chosen = bin;
            left = wanted - larger;
        }
        barrier();
        wanted = left;
        prefix = prefix << 8 | chosen;
    }
    return value_of(prefix);
}

void main() {
    uint l = gl_WorkGroupID.y, words = p.width / 4, lane = gl_SubgroupInvocationID;
    if (LID == 0) opened = spoiled = 0;
    float squares = 0.0;
    for (uint k = LID; k < words; k += GROUP) squares += dot(x[l * words + k], x[l * words + k]);
    float size = sqrt(group_sum(squares)) * SLACK, threshold = threshold_of(l, (p.outs + SIDE - 1) / SIDE);
    bool all = is_nan(threshold);
    barrier();
    for (uint i = LID; i < TILE_N; i += GROUP) {
        uint n = gl_WorkGroupID.x * TILE_N + i;
        if (n >= p.outs) break;
        float most = logits[l * p.stride + n] + error[n] * size;
        if (all || is_nan(most) || most >= threshold) open_rows[atomicAdd(opened, 1)] = n;
    }
    barrier();
    for (uint i = gl_SubgroupID; i < opened; i += WAVES) {
        uint n = open_rows[i];
        float sum = 0.0;
        for (uint k = lane; k < words; k += WAVE) {
            uvec2 packed = w[n * words + k];
            sum += dot(vec4(unpackHalf2x16(packed.x), unpackHalf2x16(packed.y)), x[l * words + k]);
        }
        sum = subgroupAdd(sum);
        if (subgroupElect()) logits[l * p.stride + n] = sum;
    }
}

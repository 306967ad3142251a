#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// out[t,h] = sum_p softmax_p(scale * q[t,h] . k[p]) v[p], p = 0..position[t], through the row's block table.
// One workgroup of 64 per head and row processes the cache a block (64 positions) at a time with a running maximum.
layout(std430, binding = 0) readonly buffer Q { float q[]; };
layout(std430, binding = 1) readonly buffer K { uint k_cache[]; };
layout(std430, binding = 2) readonly buffer V { uint v_cache[]; };
layout(std430, binding = 3) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 4) readonly buffer Tables { int tables[]; };
layout(std430, binding = 5) writeonly buffer Out { float out_[]; };
layout(push_constant) uniform Params {
    uint rows, n_heads, n_kv_heads, head_dim, row_bytes, max_blocks;
    float scale;
} p;

const uint MAX_DIM = 256;
shared float query[MAX_DIM];
shared float weights[KV_BLOCK];

float k_dot(uint word0) {
    float sum = 0.0;
    if (KV == 0) {
        for (uint d = 0; d < p.head_dim; d++) sum += query[d] * uintBitsToFloat(k_cache[word0 + d]);
    } else if (KV == 1) {
        for (uint i = 0; i < p.head_dim / 2; i++) {
            vec2 pair = unpackHalf2x16(k_cache[word0 + i]);
            sum += query[2 * i] * pair.x + query[2 * i + 1] * pair.y;
        }
    } else {
        for (uint d = 0; d < p.head_dim; d++) sum += query[d] * float(signed_byte(k_cache[word0 + 1 + d / 4], d % 4));
        sum *= uintBitsToFloat(k_cache[word0]);
    }
    return sum;
}

float v_element(uint word0, uint d) {
    if (KV == 0) return uintBitsToFloat(v_cache[word0 + d]);
    if (KV == 1) {
        vec2 pair = unpackHalf2x16(v_cache[word0 + d / 2]);
        return (d & 1u) == 0 ? pair.x : pair.y;
    }
    return float(signed_byte(v_cache[word0 + 1 + d / 4], d % 4)) * uintBitsToFloat(v_cache[word0]);
}

void main() {
    uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    uint base = (row * p.n_heads + head) * p.head_dim;
    int last = step_[row].y;
    if (last < 0) {
        for (uint d = LID; d < p.head_dim; d += GROUP) out_[base + d] = 0.0;
        return;
    }
    uint table = uint(step_[row].w) * p.max_blocks, row_words = p.row_bytes / 4;
    uint kv_head = head / (p.n_heads / p.n_kv_heads);
    for (uint d = LID; d < p.head_dim; d += GROUP) query[d] = q[base + d];
    float acc[MAX_DIM / KV_BLOCK];
    for (uint i = 0; i < MAX_DIM / KV_BLOCK; i++) acc[i] = 0.0;
    float largest = uintBitsToFloat(0xff800000u), total = 0.0;  // -infinity
    for (uint start = 0; start <= uint(last); start += KV_BLOCK) {
        uint block0 = (uint(tables[table + start / KV_BLOCK]) * p.n_kv_heads + kv_head) * KV_BLOCK;
        uint count = min(KV_BLOCK, uint(last) - start + 1);
        bool seen = LID < count;
        barrier();
        float score = seen ? k_dot((block0 + LID) * row_words) * p.scale : uintBitsToFloat(0xff800000u);
        float now = max(largest, group_max(score));
        float weight = seen ? exp(score - now) : 0.0;
        weights[LID] = weight;
        float rescale = largest == now ? 1.0 : exp(largest - now);
        total = total * rescale + group_sum(weight);
        for (uint i = 0; i < MAX_DIM / KV_BLOCK; i++) {
            uint d = LID + i * KV_BLOCK;
            if (d >= p.head_dim) break;
            float sum = acc[i] * rescale;
            for (uint j = 0; j < count; j++) sum += weights[j] * v_element((block0 + j) * row_words, d);
            acc[i] = sum;
        }
        largest = now;
    }
    for (uint i = 0; i < MAX_DIM / KV_BLOCK; i++) {
        uint d = LID + i * KV_BLOCK;
        if (d < p.head_dim) out_[base + d] = acc[i] / total;
    }
}

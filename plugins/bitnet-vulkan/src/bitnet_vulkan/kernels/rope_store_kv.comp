#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// Rotates the q and k heads of qkv[T, n_heads + 2 n_kv_heads, D] by rope[position, D/2, (cos, sin)]. Writes q[T,
// n_heads, D], and k and v to the caches: the row of (slot, head) is at byte ((slot / 64 * n_kv_heads + head) * 64 +
// slot % 64) * row_bytes.
// QKNORM: q and k heads are first normed: h / sqrt(mean(h^2) + eps) * gamma. One workgroup per head and row.
layout(std430, binding = 0) readonly buffer Qkv { float qkv[]; };
layout(std430, binding = 1) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 2) readonly buffer Rope { vec2 rope[]; };
layout(std430, binding = 3) readonly buffer QGamma { float q_gamma[]; };
layout(std430, binding = 4) readonly buffer KGamma { float k_gamma[]; };
layout(std430, binding = 5) writeonly buffer Q { float q[]; };
layout(std430, binding = 6) buffer K { uint k_cache[]; };
layout(std430, binding = 7) buffer V { uint v_cache[]; };
layout(push_constant) uniform Params { uint rows, n_heads, n_kv_heads, head_dim, row_bytes; float eps; } p;

#include "rope.glsl"

void main() {
    uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    uint base = (row * (p.n_heads + 2 * p.n_kv_heads) + head) * p.head_dim;
    int position = step_[row].y, slot = step_[row].z;
    uint at = uint(max(position, 0));
    uint kind = head < p.n_heads ? QUERY : head < p.n_heads + p.n_kv_heads ? KEY : VALUE;
    float inverse = 1.0;
    if (QKNORM == 1 && kind != VALUE) {
        float squares = 0.0;
        for (uint d = LID; d < p.head_dim; d += GROUP) squares += qkv[base + d] * qkv[base + d];
        inverse = inverse_of(group_sum(squares));
    }
    if (kind == QUERY) {
        for (uint d = LID; d < p.head_dim; d += GROUP)
            q[(row * p.n_heads + head) * p.head_dim + d] = element(base, at, QUERY, d, inverse);
        return;
    }
    if (position < 0 || slot < 0) return;
    bool is_k = kind == KEY;
    uint kv_head = head - p.n_heads - (is_k ? 0 : p.n_kv_heads);
    uint cache_row = (uint(slot) / KV_BLOCK * p.n_kv_heads + kv_head) * KV_BLOCK + uint(slot) % KV_BLOCK;
    uint word0 = cache_row * (p.row_bytes / 4);
    float factor = 0.0;
    if (KV == 2) {
        float largest = 0.0;
        for (uint d = LID; d < p.head_dim; d += GROUP) largest = max(largest, abs(element(base, at, kind, d, inverse)));
        largest = group_max(largest);
        factor = largest > 0.0 ? 127.0 / largest : 0.0;
        if (LID == 0) {
            uint bits = floatBitsToUint(largest / 127.0);
            if (is_k) k_cache[word0] = bits; else v_cache[word0] = bits;
        }
        word0 += 1;
    }
    uint per_word = KV == 0 ? 1 : KV == 1 ? 2 : 4;
    for (uint i = LID; i * per_word < p.head_dim; i += GROUP) {
        uint word = 0;
        if (KV == 0) word = floatBitsToUint(element(base, at, kind, i, inverse));
        else if (KV == 1) word = packHalf2x16(vec2(element(base, at, kind, 2 * i, inverse), element(base, at, kind, 2 * i + 1, inverse)));
        else
            for (uint j = 0; j < 4; j++)
                word |= (uint(int(roundEven(element(base, at, kind, 4 * i + j, inverse) * factor))) & 255u) << (8 * j);
        if (is_k) k_cache[word0 + i] = word; else v_cache[word0 + i] = word;
    }
}

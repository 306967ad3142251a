#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// Rotates the q and k heads of qkv[T, n_heads + 2 n_kv_heads, D] by rope[position, D/2, (cos, sin)]; writes q[T, n_heads, D]
// and k, v into the caches: row of (slot, head) at ((slot / 64 * n_kv_heads + head) * 64 + slot % 64) * row_bytes.
// One workgroup per head and row.
layout(std430, binding = 0) readonly buffer Qkv { float qkv[]; };
layout(std430, binding = 1) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 2) readonly buffer Rope { vec2 rope[]; };
layout(std430, binding = 3) writeonly buffer Q { float q[]; };
layout(std430, binding = 4) buffer K { uint k_cache[]; };
layout(std430, binding = 5) buffer V { uint v_cache[]; };
layout(push_constant) uniform Params { uint rows, n_heads, n_kv_heads, head_dim, row_bytes; } p;

#include "rope.glsl"

void main() {
    uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    uint base = (row * (p.n_heads + 2 * p.n_kv_heads) + head) * p.head_dim;
    int position = step_[row].y, slot = step_[row].z;
    uint at = uint(max(position, 0));
    if (head < p.n_heads) {
        for (uint d = LID; d < p.head_dim; d += GROUP)
            q[(row * p.n_heads + head) * p.head_dim + d] = element(base, at, true, d);
        return;
    }
    if (position < 0 || slot < 0) return;
    bool is_k = head < p.n_heads + p.n_kv_heads;
    uint kv_head = head - p.n_heads - (is_k ? 0 : p.n_kv_heads);
    uint cache_row = (uint(slot) / KV_BLOCK * p.n_kv_heads + kv_head) * KV_BLOCK + uint(slot) % KV_BLOCK;
    uint word0 = cache_row * (p.row_bytes / 4);
    float factor = 0.0;
    if (KV == 2) {
        float largest = 0.0;
        for (uint d = LID; d < p.head_dim; d += GROUP) largest = max(largest, abs(element(base, at, is_k, d)));
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
        if (KV == 0) word = floatBitsToUint(element(base, at, is_k, i));
        else if (KV == 1) word = packHalf2x16(vec2(element(base, at, is_k, 2 * i), element(base, at, is_k, 2 * i + 1)));
        else
            for (uint j = 0; j < 4; j++)
                word |= (uint(int(roundEven(element(base, at, is_k, 4 * i + j) * factor))) & 255u) << (8 * j);
        if (is_k) k_cache[word0 + i] = word; else v_cache[word0 + i] = word;
    }
}

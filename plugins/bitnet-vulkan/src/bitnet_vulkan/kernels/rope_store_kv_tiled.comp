#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// rope_store_kv of f32 and f16 caches for many rows: TILE_N heads of a row per workgroup, two neighbouring elements per
// invocation, with all of its loads in flight together.
layout(std430, binding = 0) readonly buffer Qkv { vec2 qkv[]; };
layout(std430, binding = 1) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 2) readonly buffer Rope { vec2 rope[]; };
layout(std430, binding = 3) readonly buffer QGamma { vec2 q_gamma[]; };
layout(std430, binding = 4) readonly buffer KGamma { vec2 k_gamma[]; };
layout(std430, binding = 5) writeonly buffer Q { vec2 q[]; };
layout(std430, binding = 6) buffer K { uint k_cache[]; };
layout(std430, binding = 7) buffer V { uint v_cache[]; };
layout(push_constant) uniform Params { uint rows, n_heads, n_kv_heads, head_dim, row_bytes; float eps; } p;

const uint PAIRS = DIM / 2, UNITS = (TILE_N * PAIRS + GROUP - 1) / GROUP, PARTS = 8;
// Per head: squares of its pairs, sums of PARTS parts of them, and the factor of its norm.
shared float squares[TILE_N * PAIRS], parts[TILE_N * PARTS], inverses[TILE_N];

vec2 rotated(vec2 own, vec2 other, bool first, vec2 turn_a, vec2 turn_b) {
    if (INTERLEAVED == 1) return vec2(own.x * turn_a.x - own.y * turn_a.y, own.y * turn_a.x + own.x * turn_a.y);
    vec2 cosine = vec2(turn_a.x, turn_b.x), sine = vec2(turn_a.y, turn_b.y);
    return first ? own * cosine - other * sine : own * cosine + other * sine;
}

void main() {
    uint heads = p.n_heads + 2 * p.n_kv_heads, head0 = gl_WorkGroupID.x * TILE_N, row = gl_WorkGroupID.y;
    int position = step_[row].y, slot = step_[row].z;
    uint angles = uint(max(position, 0)) * PAIRS;
    vec2 own[UNITS], other[UNITS], turn_a[UNITS], turn_b[UNITS];
    [[unroll]] for (uint i = 0; i < UNITS; i++) {
        uint at = LID + i * GROUP, head = head0 + at / PAIRS, pair = at % PAIRS;
        if (at >= TILE_N * PAIRS || head >= heads) break;
        uint base = (row * heads + head) * PAIRS, halfway = PAIRS / 2;
        own[i] = qkv[base + pair];
        if (INTERLEAVED == 1) {
            turn_a[i] = rope[angles + pair];
        } else {
            other[i] = qkv[base + (pair < halfway ? pair + halfway : pair - halfway)];
            turn_a[i] = rope[angles + 2 * (pair % halfway)];
            turn_b[i] = rope[angles + 2 * (pair % halfway) + 1];
        }
    }
    if (QKNORM == 1) {
        [[unroll]] for (uint i = 0; i < UNITS; i++) {
            uint at = LID + i * GROUP;
            if (at < TILE_N * PAIRS) squares[at] = head0 + at / PAIRS < heads ? own[i].x * own[i].x + own[i].y * own[i].y : 0.0;
        }
        barrier();
        for (uint i = LID; i < TILE_N * PARTS; i += GROUP) {
            float sum = 0.0;
            for (uint j = i % PARTS; j < PAIRS; j += PARTS) sum += squares[i / PARTS * PAIRS + j];
            parts[i] = sum;
        }
        barrier();
        for (uint h = LID; h < TILE_N; h += GROUP) {
            float sum = 0.0;
            for (uint j = 0; j < PARTS; j++) sum += parts[h * PARTS + j];
            inverses[h] = not_finite(sum) ? uintBitsToFloat(NAN_BITS) : 1.0 / sqrt(sum / float(DIM) + p.eps);
        }
        barrier();
    }
    [[unroll]] for (uint i = 0; i < UNITS; i++) {
        uint at = LID + i * GROUP, head = head0 + at / PAIRS, pair = at % PAIRS, halfway = PAIRS / 2;
        if (at >= TILE_N * PAIRS || head >= heads) break;
        if (QKNORM == 1 && head < p.n_heads + p.n_kv_heads) {
            uint away = pair < halfway ? pair + halfway : pair - halfway;
            own[i] *= inverses[at / PAIRS] * (head < p.n_heads ? q_gamma[pair] : k_gamma[pair]);
            if (INTERLEAVED == 0) other[i] *= inverses[at / PAIRS] * (head < p.n_heads ? q_gamma[away] : k_gamma[away]);
        }
        bool is_v = head >= p.n_heads + p.n_kv_heads;
        vec2 made = is_v ? own[i] : rotated(own[i], other[i], pair < PAIRS / 2, turn_a[i], turn_b[i]);
        if (head < p.n_heads) {
            q[(row * p.n_heads + head) * PAIRS + pair] = made;
            continue;
        }
        if (position < 0 || slot < 0) continue;
        uint kv_head = head - p.n_heads - (is_v ? p.n_kv_heads : 0);
        uint cache_row = (uint(slot) / KV_BLOCK * p.n_kv_heads + kv_head) * KV_BLOCK + uint(slot) % KV_BLOCK;
        uint word0 = cache_row * (p.row_bytes / 4);
        if (KV == 1) {
            uint word = packHalf2x16(made);
            if (is_v) v_cache[word0 + pair] = word;
            else k_cache[word0 + pair] = word;
        } else {
            [[unroll]] for (uint e = 0; e < 2; e++) {
                uint word = floatBitsToUint(made[e]);
                if (is_v) v_cache[word0 + 2 * pair + e] = word;
                else k_cache[word0 + 2 * pair + e] = word;
            }
        }
    }
}

#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define SUBGROUP
#include "prelude.glsl"
// attention for many rows and f16 caches on matrix units: a subgroup makes 16 rows of one head, TILE_N heads of one
// key/value head and TILE_T rows to a workgroup, a block of 64 positions at a time through shared memory.
// The first pass over the positions finds each row's largest score, nearly; the second sums exp(score - largest) v, which
// then needs no correction. Factors that are not f16 already are the sum of two, so that products are good to 22 bits.
layout(std430, binding = 0) readonly buffer Q { vec4 q[]; };
layout(std430, binding = 1) readonly buffer K { uvec4 k_cache[]; };
layout(std430, binding = 2) readonly buffer V { uvec4 v_cache[]; };
layout(std430, binding = 3) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 4) readonly buffer Tables { int tables[]; };
layout(std430, binding = 5) writeonly buffer Out { vec4 out_[]; };
layout(push_constant) uniform Params {
    uint rows, n_heads, n_kv_heads, head_dim, row_bytes, max_blocks;
    float scale;
} p;

const uint SIDE = 16, SUBGROUPS = TILE_N * TILE_T / SIDE, OCTETS = DIM / 8, STRIDE = OCTETS + 1, PARTS = DIM / SIDE;
const uint AREA = SIDE * 16;  // uvec4 of a subgroup: 16 x 64 floats, or two 16 x 64 halves, or 16 x 128 halves
const float LOWEST = -3.0e38, LIFT = 1024.0, MOST = 65504.0;
shared uvec4 tile[KV_BLOCK * STRIDE], work[SUBGROUPS * AREA];
shared ivec4 steps[TILE_T];

#define LEFT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define SUM coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

// v = high + low as halves, four at a time.
void split(vec4 v, out uvec2 high, out uvec2 low) {
    vec4 bound = clamp(v, -MOST, MOST);
    high = uvec2(packHalf2x16(bound.xy), packHalf2x16(bound.zw));
    vec4 rest = v - vec4(unpackHalf2x16(high.x), unpackHalf2x16(high.y));
    low = uvec2(packHalf2x16(rest.xy), packHalf2x16(rest.zw));
}

// One block of a cache into shared memory; positions past the last are zero.
#define FETCH(NAME, CACHE)                                                                   \
    void NAME(uint row0, uint valid) {                                                       \
        barrier();                                                                           \
        [[unroll]] for (uint i = 0; i < KV_BLOCK * OCTETS / GROUP; i++) {                    \
            uint at = LID + i * GROUP, position = at / OCTETS, octet = at % OCTETS;          \
            tile[position * STRIDE + octet] =                                                \
                position < valid ? CACHE[(row0 + position) * OCTETS + octet] : uvec4(0);     \
        }                                                                                    \
        barrier();                                                                           \
    }
FETCH(fetch_k, k_cache)
FETCH(fetch_v, v_cache)

void main() {
    uint lane = gl_SubgroupInvocationID, area = gl_SubgroupID * AREA;
    uint head = gl_WorkGroupID.x * TILE_N + gl_SubgroupID % TILE_N, kv_head = head / (p.n_heads / p.n_kv_heads);
    uint first = (gl_NumWorkGroups.y - 1 - gl_WorkGroupID.y) * TILE_T;  // the longest first
    uint own = gl_SubgroupID / TILE_N * SIDE;                           // rows of this subgroup, from first
    for (uint i = LID; i < TILE_T; i += GROUP) steps[i] = first + i < p.rows ? step_[first + i] : ivec4(-1, -1, -1, -1);

    LEFT query[2][PARTS];
    [[unroll]] for (uint part = 0; part < 2; part++) {
        for (uint i = lane; i < SIDE * OCTETS; i += gl_SubgroupSize) {
            uint row = first + own + i / OCTETS, at = ((row * p.n_heads + head) * DIM) / 4 + 2 * (i % OCTETS);
            uvec2 high[2], low[2];
            [[unroll]] for (uint j = 0; j < 2; j++)
                split(row < p.rows ? q[at + j] * p.scale : vec4(0.0), high[j], low[j]);
            work[area + i] = part == 0 ? uvec4(high[0], high[1]) : uvec4(low[0], low[1]);
        }
        subgroupBarrier();
        [[unroll]] for (uint d = 0; d < PARTS; d++)
            coopMatLoad(query[part][d], work, area + 2 * d, OCTETS, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
    }
    barrier();

    SUM sums[PARTS];
    [[unroll]] for (uint d = 0; d < PARTS; d++) sums[d] = SUM(0.0);
    uint row = lane / 2, column0 = lane % 2 * 32;  // two lanes share a row of scores
    int position = steps[own + row].y;
    float largest = LOWEST, total = 0.0;
    for (uint pass = 0; pass < 2; pass++) {
        for (uint start = 0; start < TILE_T;) {  // rows of one sequence after the other
            int sequence = steps[start].w, last = -1;
            uint end = start;
            for (; end < TILE_T && steps[end].w == sequence; end++) last = max(last, steps[end].y);
            bool mine = own + row >= start && own + row < end;
            for (int block = 0; last >= 0 && block <= last / int(KV_BLOCK); block++) {
                uint row0 = (uint(tables[uint(sequence) * p.max_blocks + block]) * p.n_kv_heads + kv_head) * KV_BLOCK;
                uint valid = min(uint(last) + 1 - block * KV_BLOCK, KV_BLOCK);
                fetch_k(row0, valid);
                SUM scores[4];
                [[unroll]] for (uint n = 0; n < 4; n++) {
                    scores[n] = SUM(0.0);
                    [[unroll]] for (uint d = 0; d < PARTS; d++) {
                        RIGHT keys;
                        coopMatLoad(keys, tile, n * SIDE * STRIDE + 2 * d, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                        scores[n] = coopMatMulAdd(query[0][d], keys, scores[n]);
                        if (pass == 1) scores[n] = coopMatMulAdd(query[1][d], keys, scores[n]);
                    }
                    coopMatStore(scores[n], work, area + 4 * n, 16, gl_CooperativeMatrixLayoutRowMajor);
                }
                subgroupBarrier();
                vec4 score[8];
                int here = block * int(KV_BLOCK) + int(column0);
                [[unroll]] for (uint i = 0; i < 8; i++) {
                    score[i] = uintBitsToFloat(work[area + row * 16 + column0 / 4 + i]);
                    [[unroll]] for (uint e = 0; e < 4; e++) {
                        bool seen = mine && here + int(4 * i + e) <= position;
                        if (pass == 0) largest = seen ? max(largest, score[i][e]) : largest;
                        else score[i][e] = seen ? exp(score[i][e] - largest) * LIFT : 0.0;
                    }
                    if (pass == 1) total += score[i].x + score[i].y + score[i].z + score[i].w;
                }
                subgroupBarrier();
                if (pass == 0) continue;
                [[unroll]] for (uint i = 0; i < 8; i += 2) {
                    uvec2 high[2], low[2];
                    split(score[i], high[0], low[0]);
                    split(score[i + 1], high[1], low[1]);
                    uint at = area + row * 16 + column0 / 8 + i / 2;
                    work[at] = uvec4(high[0], high[1]);
                    work[at + 8] = uvec4(low[0], low[1]);
                }
                fetch_v(row0, valid);
                [[unroll]] for (uint n = 0; n < 4; n++) {
                    LEFT high;
                    LEFT low;  // apart: glslang 13 spoils the second of two
                    coopMatLoad(high, work, area + 2 * n, 16, gl_CooperativeMatrixLayoutRowMajor);
                    coopMatLoad(low, work, area + 8 + 2 * n, 16, gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (uint d = 0; d < PARTS; d++) {
                        RIGHT values;
                        coopMatLoad(values, tile, n * SIDE * STRIDE + 2 * d, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                        sums[d] = coopMatMulAdd(high, values, sums[d]);
                        sums[d] = coopMatMulAdd(low, values, sums[d]);
                    }
                }
            }
            start = end;
        }
        if (pass == 0) largest = max(largest, subgroupShuffleXor(largest, 1));
    }
    total += subgroupShuffleXor(total, 1);
    [[unroll]] for (uint d0 = 0; d0 < PARTS; d0 += 4) {
        subgroupBarrier();
        [[unroll]] for (uint d = d0; d < min(d0 + 4, PARTS); d++)
            coopMatStore(sums[d], work, area + 4 * (d - d0), 16, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        if (first + own + row < p.rows) {
            uint at = ((first + own + row) * p.n_heads + head) * DIM / 4;
            [[unroll]] for (uint i = 0; i < 8; i++) {
                uint word = d0 * 4 + column0 / 4 + i;
                vec4 sum = uintBitsToFloat(work[area + row * 16 + column0 / 4 + i]);
                if (word < DIM / 4) out_[at + word] = position < 0 ? vec4(0.0) : sum / total;
            }
        }
    }
}

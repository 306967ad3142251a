#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define SUBGROUP
#include "prelude.glsl"
// attention for many rows and f16 caches on matrix units: a subgroup makes 16 rows of one head, TILE_N heads of one
// key/value head and TILE_T rows to a workgroup, STEP positions at a time through shared memory while the next ones are on
// their way to registers. Each row keeps a running maximum; the sums so far are multiplied element by element in those steps
// in which it grows for one of the subgroup's rows. A vote tells so: after a maximum NVIDIA's compiler took the branch for one
// that invocations take apart, and matrices came out wrong.
// Factors that are not f16 already are the sum of two, so that products are good to 22 bits.
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

const uint SIDE = 16, STEP = 32, SUBGROUPS = TILE_N * TILE_T / SIDE, OCTETS = DIM / 8, STRIDE = OCTETS + 1;
const uint PARTS = DIM / SIDE, LOADS = STEP * OCTETS / GROUP;
// uvec4 of a subgroup: 16 x 32 scores, of which factors take the place, then 16 x 32 weights twice; or 16 rows of queries
// or of results. Rows are one longer to lie in different banks.
const uint SCORES = 9, WEIGHTS = 5, HIGH = SIDE * SCORES, LOW = HIGH + SIDE * WEIGHTS, AREA = LOW + SIDE * WEIGHTS;
const float LOWEST = -3.0e38, LIFT = 1024.0, MOST = 65504.0;
shared uvec4 k_tile[STEP * STRIDE], v_tile[STEP * STRIDE], work[SUBGROUPS * AREA];
shared ivec4 steps[TILE_T];

#define LEFT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define SUM coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

// v = high + low as halves, four at a time. By bits: compilers take half(v) back to f32 for v itself.
void split(vec4 v, out uvec2 high, out uvec2 low) {
    vec4 bound = clamp(v, -MOST, MOST), cut = uintBitsToFloat(floatBitsToUint(bound) & 0xffffe000u), rest = v - cut;
    high = uvec2(packHalf2x16(cut.xy), packHalf2x16(cut.zw));
    low = uvec2(packHalf2x16(rest.xy), packHalf2x16(rest.zw));
}

// Keys and values of STEP positions to registers; positions past the last are zero.
#define FETCH(START)                                                                                                     \
    {                                                                                                                    \
        uint block = uint(tables[uint(sequence) * p.max_blocks + (START) / KV_BLOCK]);                                   \
        uint row0 = (block * p.n_kv_heads + kv_head) * KV_BLOCK + (START) % KV_BLOCK;                                    \
        [[unroll]] for (uint i = 0; i < LOADS; i++) {                                                                    \
            uint at = LID + i * GROUP;                                                                                   \
            bool seen = (START) + at / OCTETS <= uint(last);                                                             \
            k_next[i] = seen ? k_cache[row0 * OCTETS + at] : uvec4(0);                                                   \
            v_next[i] = seen ? v_cache[row0 * OCTETS + at] : uvec4(0);                                                   \
        }                                                                                                                \
    }

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
    uint row = lane / 2, column0 = lane % 2 * 16;  // two lanes share a row of scores
    int position = steps[own + row].y;
    float largest = LOWEST, total = 0.0;
    uvec4 k_next[LOADS], v_next[LOADS];
    for (uint begin = 0; begin < TILE_T;) {  // rows of one sequence after the other
        int sequence = steps[begin].w, last = -1;
        uint end = begin;
        for (; end < TILE_T && steps[end].w == sequence; end++) last = max(last, steps[end].y);
        bool mine = own + row >= begin && own + row < end;
        if (last >= 0) FETCH(0u)
        for (int start = 0; start <= last; start += int(STEP)) {
            barrier();
            [[unroll]] for (uint i = 0; i < LOADS; i++) {
                uint at = LID + i * GROUP;
                k_tile[at / OCTETS * STRIDE + at % OCTETS] = k_next[i];
                v_tile[at / OCTETS * STRIDE + at % OCTETS] = v_next[i];
            }
            barrier();
            if (start + int(STEP) <= last) FETCH(uint(start) + STEP)
            SUM high_scores[2];
            SUM low_scores[2];  // sums of their own: each product waits for the one before it in a sum
            [[unroll]] for (uint n = 0; n < 2; n++) {
                high_scores[n] = SUM(0.0);
                low_scores[n] = SUM(0.0);
            }
            [[unroll]] for (uint d = 0; d < PARTS; d++)
                [[unroll]] for (uint n = 0; n < 2; n++) {
                    RIGHT keys;
                    coopMatLoad(keys, k_tile, n * SIDE * STRIDE + 2 * d, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                    high_scores[n] = coopMatMulAdd(query[0][d], keys, high_scores[n]);
                    low_scores[n] = coopMatMulAdd(query[1][d], keys, low_scores[n]);
                }
            [[unroll]] for (uint n = 0; n < 2; n++) {
                SUM scores = high_scores[n] + low_scores[n];
                coopMatStore(scores, work, area + 4 * n, SCORES, gl_CooperativeMatrixLayoutRowMajor);
            }
            subgroupBarrier();
            vec4 score[4];
            int here = start + int(column0);
            float before = largest;
            [[unroll]] for (uint i = 0; i < 4; i++) {
                score[i] = uintBitsToFloat(work[area + row * SCORES + column0 / 4 + i]);
                [[unroll]] for (uint e = 0; e < 4; e++)
                    if (mine && here + int(4 * i + e) <= position) largest = max(largest, score[i][e]);
            }
            largest = max(largest, subgroupShuffleXor(largest, 1));
            float factor = exp(before - largest);
            total *= factor;
            bool grew = !subgroupAll(largest == before);
            [[unroll]] for (uint i = 0; i < 4; i++) {
                [[unroll]] for (uint e = 0; e < 4; e++) {
                    bool seen = mine && here + int(4 * i + e) <= position;
                    score[i][e] = seen ? exp(score[i][e] - largest) * LIFT : 0.0;
                }
                total += score[i].x + score[i].y + score[i].z + score[i].w;
            }
            subgroupBarrier();
            [[unroll]] for (uint i = 0; i < 4; i += 2) {
                uvec2 high[2], low[2];
                split(score[i], high[0], low[0]);
                split(score[i + 1], high[1], low[1]);
                uint at = area + row * WEIGHTS + column0 / 8 + i / 2;
                work[at + HIGH] = uvec4(high[0], high[1]);
                work[at + LOW] = uvec4(low[0], low[1]);
                if (grew) work[area + row * WEIGHTS + column0 / 8 + i / 2] = floatBitsToUint(vec4(factor));
            }
            subgroupBarrier();
            if (grew) {
                SUM factors;
                coopMatLoad(factors, work, area, WEIGHTS, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint d = 0; d < PARTS; d++) sums[d] = sums[d] * factors;
            }
            [[unroll]] for (uint n = 0; n < 2; n++) {
                LEFT high;
                LEFT low;  // apart: glslang 13 spoils the second of two
                coopMatLoad(high, work, area + HIGH + 2 * n, WEIGHTS, gl_CooperativeMatrixLayoutRowMajor);
                coopMatLoad(low, work, area + LOW + 2 * n, WEIGHTS, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint d = 0; d < PARTS; d++) {
                    RIGHT values;
                    coopMatLoad(values, v_tile, n * SIDE * STRIDE + 2 * d, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                    sums[d] = coopMatMulAdd(high, values, sums[d]);
                    sums[d] = coopMatMulAdd(low, values, sums[d]);
                }
            }
            subgroupBarrier();
        }
        begin = end;
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
                uint word = d0 * 4 + lane % 2 * 8 + i;
                vec4 sum = uintBitsToFloat(work[area + row * 16 + lane % 2 * 8 + i]);
                if (word < DIM / 4) out_[at + word] = position < 0 ? vec4(0.0) : sum / total;
            }
        }
    }
}

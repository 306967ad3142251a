#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define SUBGROUP
#include "prelude.glsl"
#include "matrix.glsl"
// attention for many rows and f16 caches on matrix units: out[t,h] = sum_p softmax_p(scale * q[t,h] . k[p]) v[p], p =
// 0..position[t].
// A subgroup computes 16 rows of one head; a workgroup has TILE_N heads of one key/value head and TILE_T rows. STEP
// positions at a time pass through shared memory while the next ones are loaded into registers. Each row keeps a
// running maximum, and its weights become the left operand of the next product in place. Factors that are not f16 are
// the sum of two f16, so that products have 22 bits. Sums are scalars: NVIDIA's compiler writes an array of matrices to
// memory with every product.
layout(std430, binding = 0) readonly buffer Q { vec4 q[]; };
layout(std430, binding = 1) readonly buffer K { uvec4 k_cache[]; };
layout(std430, binding = 2) readonly buffer V { uvec4 v_cache[]; };
layout(std430, binding = 3) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 4) readonly buffer Tables { int tables[]; };
layout(std430, binding = 5) writeonly buffer Out { vec2 out_[]; };
layout(push_constant) uniform Params {
    uint rows, n_heads, n_kv_heads, head_dim, row_bytes, max_blocks;
    float scale;
} p;

const uint SIDE = 16, STEP = 32, PIECES = STEP / SIDE, SUBGROUPS = TILE_N * TILE_T / SIDE, OCTETS = DIM / 8;
const uint STRIDE = OCTETS + 1;  // uvec4 of a row, plus one to spread rows over banks
const uint PARTS = DIM / SIDE, LOADS = STEP * OCTETS / GROUP, TILE = STEP * STRIDE, QUERIES = SUBGROUPS * SIDE * STRIDE;
const float MASKED = -3.4e38, LOWEST = -3.0e38, LIFT = 1024.0, MOST = 65504.0;
shared uvec4 tile[4 * TILE > QUERIES ? 4 * TILE : QUERIES];  // first the queries; then keys and values, double-buffered
shared ivec4 steps[TILE_T];

#define LEFT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define SUM coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

// v = high + low as f16, four at a time. By bits, since compilers replace f32(half(v)) by v.
void split(vec4 v, out uvec2 high, out uvec2 low) {
    vec4 bound = clamp(v, -MOST, MOST), cut = uintBitsToFloat(floatBitsToUint(bound) & 0xffffe000u), rest = v - cut;
    high = uvec2(packHalf2x16(cut.xy), packHalf2x16(cut.zw));
    low = uvec2(packHalf2x16(rest.xy), packHalf2x16(rest.zw));
}

// Load keys or values of STEP positions into registers, zero past the last; and store them to shared memory.
#define FETCH(CACHE, START)                                                                                              \
    {                                                                                                                    \
        uint block = uint(tables[uint(sequence) * p.max_blocks + (START) / KV_BLOCK]);                                   \
        uint row0 = (block * p.n_kv_heads + kv_head) * KV_BLOCK + (START) % KV_BLOCK;                                    \
        [[unroll]] for (uint i = 0; i < LOADS; i++) {                                                                    \
            uint at = LID + i * GROUP;                                                                                   \
            next[i] = (START) + at / OCTETS <= uint(last) ? CACHE[row0 * OCTETS + at] : uvec4(0);                        \
        }                                                                                                                \
    }
#define PUT(TO)                                                                                                          \
    [[unroll]] for (uint i = 0; i < LOADS; i++) {                                                                        \
        uint at = LID + i * GROUP;                                                                                       \
        tile[(TO) + at / OCTETS * STRIDE + at % OCTETS] = next[i];                                                       \
    }

void main() {
    uint lane = gl_SubgroupInvocationID, area = gl_SubgroupID * SIDE * STRIDE;
    uint head = gl_WorkGroupID.x * TILE_N + gl_SubgroupID % TILE_N, kv_head = head / (p.n_heads / p.n_kv_heads);
    uint first = (gl_NumWorkGroups.y - 1 - gl_WorkGroupID.y) * TILE_T;  // the longest rows first
    uint own = gl_SubgroupID / TILE_N * SIDE;                           // rows of this subgroup, relative to first
    for (uint i = LID; i < TILE_T; i += GROUP) steps[i] = first + i < p.rows ? step_[first + i] : ivec4(-1, -1, -1, -1);

    LEFT query[2][PARTS];
    [[unroll]] for (uint part = 0; part < 2; part++) {
        for (uint i = lane; i < SIDE * OCTETS; i += gl_SubgroupSize) {
            uint row = first + own + i / OCTETS, at = ((row * p.n_heads + head) * DIM) / 4 + 2 * (i % OCTETS);
            uvec2 high[2], low[2];
            [[unroll]] for (uint j = 0; j < 2; j++)
                split(row < p.rows ? q[at + j] * p.scale : vec4(0.0), high[j], low[j]);
            tile[area + i / OCTETS * STRIDE + i % OCTETS] = part == 0 ? uvec4(high[0], high[1]) : uvec4(low[0], low[1]);
        }
        subgroupBarrier();
        [[unroll]] for (uint d = 0; d < PARTS; d++)
            coopMatLoad(query[part][d], tile, area + 2 * d, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
    }
    barrier();

    // An invocation has elements of two rows.
    float sums[PARTS][ELEMENTS], largest[2], total[2];
    int position[2];
    [[unroll]] for (uint d = 0; d < PARTS; d++)
        [[unroll]] for (uint e = 0; e < ELEMENTS; e++) sums[d][e] = 0.0;
    [[unroll]] for (uint g = 0; g < 2; g++) {
        position[g] = steps[own + ROW(4 * g)].y;
        largest[g] = LOWEST;
        total[g] = 0.0;
    }
    uint side = 0;
    uvec4 next[LOADS];
    for (uint begin = 0; begin < TILE_T;) {  // rows of one sequence at a time
        int sequence = steps[begin].w, last = -1, limit[2];
        uint end = begin;
        for (; end < TILE_T && steps[end].w == sequence; end++) last = max(last, steps[end].y);
        [[unroll]] for (uint g = 0; g < 2; g++)
            limit[g] = own + ROW(4 * g) >= begin && own + ROW(4 * g) < end ? position[g] : -1;
        if (last >= 0) {
            FETCH(k_cache, 0u)
            PUT(side)
            FETCH(v_cache, 0u)
            PUT(side + TILE)
            barrier();
        }
        for (int start = 0; start <= last; start += int(STEP)) {
            bool more = start + int(STEP) <= last;
            uint other = 2 * TILE - side;
            if (more) FETCH(k_cache, uint(start) + STEP)
            float score[PIECES][ELEMENTS], before[2], factor[2];
            [[unroll]] for (uint n = 0; n < PIECES; n++) {
                SUM high_scores = SUM(0.0);
                SUM low_scores = SUM(0.0);  // separate sums, since products of one sum wait for each other
                [[unroll]] for (uint d = 0; d < PARTS; d++) {
                    RIGHT keys;
                    coopMatLoad(keys, tile, side + n * SIDE * STRIDE + 2 * d, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                    high_scores = coopMatMulAdd(query[0][d], keys, high_scores);
                    low_scores = coopMatMulAdd(query[1][d], keys, low_scores);
                }
                [[unroll]] for (uint e = 0; e < ELEMENTS; e++) score[n][e] = high_scores[e] + low_scores[e];
            }
            if (more) {
                PUT(other)
                FETCH(v_cache, uint(start) + STEP)
            }
            [[unroll]] for (uint g = 0; g < 2; g++) before[g] = largest[g];
            [[unroll]] for (uint n = 0; n < PIECES; n++)
                [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {
                    if (start + int(SIDE * n + COLUMN(e)) > limit[e / 4]) score[n][e] = MASKED;
                    largest[e / 4] = max(largest[e / 4], score[n][e]);
                }
            [[unroll]] for (uint g = 0; g < 2; g++) {
                largest[g] = max(largest[g], subgroupShuffleXor(largest[g], 1));
                largest[g] = max(largest[g], subgroupShuffleXor(largest[g], 2));
                factor[g] = exp(before[g] - largest[g]);
                total[g] *= factor[g];
            }
            [[unroll]] for (uint d = 0; d < PARTS; d++)
                [[unroll]] for (uint e = 0; e < ELEMENTS; e++) sums[d][e] *= factor[e / 4];
            [[unroll]] for (uint n = 0; n < PIECES; n++) {
                LEFT high;
                LEFT low;  // separate, since glslang 13 miscompiles the second of two
                [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {
                    float weight = exp(score[n][e] - largest[e / 4]) * LIFT;
                    total[e / 4] += weight;
                    float cut = uintBitsToFloat(floatBitsToUint(weight) & 0xffffe000u);
                    high[e] = float16_t(cut);
                    low[e] = float16_t(weight - cut);
                }
                [[unroll]] for (uint d = 0; d < PARTS; d++) {
                    RIGHT values;
                    coopMatLoad(values, tile, side + TILE + n * SIDE * STRIDE + 2 * d, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                    SUM sum;
                    [[unroll]] for (uint e = 0; e < ELEMENTS; e++) sum[e] = sums[d][e];
                    sum = coopMatMulAdd(high, values, sum);
                    sum = coopMatMulAdd(low, values, sum);
                    [[unroll]] for (uint e = 0; e < ELEMENTS; e++) sums[d][e] = sum[e];
                }
            }
            if (more) PUT(other + TILE)
            barrier();
            side = other;
        }
        begin = end;
    }
    [[unroll]] for (uint g = 0; g < 2; g++) {
        total[g] += subgroupShuffleXor(total[g], 1);
        total[g] += subgroupShuffleXor(total[g], 2);
        uint row = first + own + ROW(4 * g);
        if (row >= p.rows) continue;
        [[unroll]] for (uint d = 0; d < PARTS; d++)
            [[unroll]] for (uint e = 4 * g; e < 4 * g + 4; e += 2) {
                vec2 sum = vec2(sums[d][e], sums[d][e + 1]) / total[g];
                out_[((row * p.n_heads + head) * DIM + SIDE * d + COLUMN(e)) / 2] = position[g] < 0 ? vec2(0.0) : sum;
            }
    }
}

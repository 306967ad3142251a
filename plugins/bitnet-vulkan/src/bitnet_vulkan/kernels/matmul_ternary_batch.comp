#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "prelude.glsl"
#include "matrix.glsl"
#include "matrix_batch.glsl"
// matmul_ternary for the rows of a batch on matrix units, so that a weight is unpacked once for all of them
// (matrix_batch.glsl): y[t, y_first + n] (+)= (sum_k code[n,k] q[t,k] - qsum[t]) * scale[t] * wscale[n].
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };
layout(std430, binding = 4) readonly buffer Qsum { int qsum[]; };
layout(std430, binding = 5) buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

void main() {
    uint lane = gl_SubgroupInvocationID, area = gl_SubgroupID * AREA, blocks = p.width / 128;
    uint n0 = gl_WorkGroupID.x * TILE_N, t0 = gl_WorkGroupID.y * TILE_T;
    uvec4 w_next[W_LOADS], q_next[Q_LOADS];
    SUM totals[FRAGMENTS_T][FRAGMENTS_N];
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) totals[i][j] = SUM(0);
    LOAD(gl_SubgroupID)
    for (uint b = gl_SubgroupID; b < blocks; b += WAVES_K) {
        [[unroll]] for (uint i = 0; i < W_LOADS; i++)
            [[unroll]] for (uint s = 0; s < 4; s++)
                pool[area + W_PLACE(i) + 2 * s] = (w_next[i] >> (6 - 2 * s)) & 0x03030303u;
        STORE_Q
        subgroupBarrier();
        LOAD(min(b + WAVES_K, blocks - 1))
        [[unroll]] for (uint s = 0; s < 4; s++) {
            LEFT tokens[FRAGMENTS_T];
            [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
                coopMatLoad(tokens[i], pool, area + Q_AREA + 16 * i * STRIDE + 2 * s, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {
                RIGHT codes;
                coopMatLoad(codes, pool, area + 16 * j * STRIDE + 2 * s, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) totals[i][j] = coopMatMulAdd(tokens[i], codes, totals[i][j]);
            }
        }
        subgroupBarrier();
    }
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++)
            [[unroll]] for (uint e = 0; e < ELEMENTS; e++) pool[area + PART(i, j, e) / 4][PART(i, j, e) % 4] = uint(totals[i][j][e]);
    barrier();
    for (uint at = LID; at < TILE_T * TILE_N; at += GROUP) {
        uint n = n0 + at % TILE_N, token = t0 + at / TILE_N;
        if (n >= p.outs || token >= p.rows) continue;
        int sum = -qsum[token];
        [[unroll]] for (uint k = 0; k < WAVES_K; k++) sum += int(pool[k * AREA + at / 4][at % 4]);
        float value = float(sum) * scale[token] * wscale[n];
        uint to = token * p.y_stride + p.y_first + n;
        y[to] = ADD == 1 ? y[to] + value : value;
    }
}

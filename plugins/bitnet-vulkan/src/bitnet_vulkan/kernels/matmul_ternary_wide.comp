#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "prelude.glsl"
#include "matrix_narrow.glsl"
#include "matrix_wide.glsl"
// matmul_ternary for the rows of a batch on matrix units, so that a weight is unpacked once for all of them
// (matrix_wide.glsl): y[t, y_first + n] (+)= (sum_k code[n,k] q[t,k] - qsum[t]) * scale[t] * wscale[n].
layout(std430, binding = 0) readonly buffer W { uvec2 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec2 q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };
layout(std430, binding = 4) readonly buffer Qsum { int qsum[]; };
layout(std430, binding = 5) buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

void main() {
    uint lane = gl_SubgroupInvocationID, blocks = p.width / 128;
    uint n0 = gl_WorkGroupID.x * TILE_N, t0 = gl_WorkGroupID.y * TILE_T;
    uvec2 w_next[2 * FRAGMENTS_N], words[2 * FRAGMENTS_N], q_words[FRAGMENTS_T][4];
    SUM totals[FRAGMENTS_N][FRAGMENTS_T];
    [[unroll]] for (uint m = 0; m < FRAGMENTS_N; m++)
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) totals[m][i] = SUM(0.0);
    LOAD_W(min(gl_SubgroupID, blocks - 1))
    for (uint b = gl_SubgroupID; b < blocks; b += WAVES_K) {
        LOAD_Q(b)
        [[unroll]] for (uint r = 0; r < 2 * FRAGMENTS_N; r++) words[r] = w_next[r];
        LOAD_W(min(b + WAVES_K, blocks - 1))
        [[unroll]] for (uint s = 0; s < 4; s++)
            [[unroll]] for (uint j = 0; j < 2; j++) {
                RIGHT tokens[FRAGMENTS_T];
                [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) { ACTIVATIONS(tokens[i], q_words[i][s][j], s) }
                [[unroll]] for (uint m = 0; m < FRAGMENTS_N; m++) {
                    LEFT codes;
                    CODES(codes, words[2 * m][j], words[2 * m + 1][j], s)
                    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) totals[m][i] = coopMatMulAdd(codes, tokens[i], totals[m][i]);
                }
            }
    }
    [[unroll]] for (uint m = 0; m < FRAGMENTS_N; m++)
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
            [[unroll]] for (uint e = 0; e < ELEMENTS; e++)
                pool[gl_SubgroupID * AREA + (8 * i + COLUMN(e)) * TILE_N + 16 * m + ROW(e)] = totals[m][i][e];
    barrier();
    for (uint at = LID; at < AREA; at += GROUP) {
        uint n = n0 + at % TILE_N, token = t0 + at / TILE_N;
        if (n >= p.outs || token >= p.rows) continue;
        float sum = 0.0;
        [[unroll]] for (uint k = 0; k < WAVES_K; k++) sum += pool[k * AREA + at];
        float value = float(int(sum * UNIT) - qsum[token]) * scale[token] * wscale[n];
        uint to = token * p.y_stride + p.y_first + n;
        y[to] = ADD == 1 ? y[to] + value : value;
    }
}

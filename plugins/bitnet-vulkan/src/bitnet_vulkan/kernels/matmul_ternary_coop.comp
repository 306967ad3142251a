#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "prelude.glsl"
#include "matrix.glsl"
#include "matrix_tiles.glsl"
// matmul_ternary for many rows on matrix units: y[t, y_first + n] (+)= (sum_k code[n,k] q[t,k] - qsum[t]) * scale[t] *
// wscale[n].
// A workgroup computes TILE_T tokens x TILE_N outputs from 16 x 16 x 32 products of signed bytes with 32-bit sums. Per
// step of 128 columns the codes (unpacked to bytes) and the activations pass through shared memory while the next ones
// are loaded into registers.
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };
layout(std430, binding = 4) readonly buffer Qsum { int qsum[]; };
layout(std430, binding = 5) buffer Y { float y[]; };
layout(std430, binding = 5) buffer Y2 { vec2 y2[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

shared uvec4 w_tile[TILE_N * STRIDE], q_tile[TILE_T * STRIDE];

void main() {
    uint n0 = TILE_FIRST_N, t0 = TILE_FIRST_T, blocks = p.width / 128;
    uint wave_t = gl_SubgroupID % WAVES_T * WAVE_T, wave_n = gl_SubgroupID / WAVES_T * WAVE_N;
    uvec4 w_next[W_LOADS], q_next[Q_LOADS];
    uint w_from[W_LOADS], q_from[Q_LOADS];
    PLACES(w_from, q_from)
    SUM totals[FRAGMENTS_T][FRAGMENTS_N];
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) totals[i][j] = SUM(0);
    LOAD(0)
    for (uint b = 0; b < blocks; b++) {
        [[unroll]] for (uint i = 0; i < W_LOADS; i++) {
            uint to = W_ROW(LID + i * GROUP) * STRIDE + LID % 2;
            if (LID + i * GROUP >= 2 * TILE_N) break;
            [[unroll]] for (uint s = 0; s < 4; s++) w_tile[to + 2 * s] = (w_next[i] >> (6 - 2 * s)) & 0x03030303u;
        }
        STORE_Q
        barrier();
        if (b + 1 < blocks) {
            LOAD(b + 1)
        }
        [[unroll]] for (uint s = 0; s < 4; s++) {
            LEFT tokens[FRAGMENTS_T];
            [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
                coopMatLoad(tokens[i], q_tile, (wave_t + 16 * i) * STRIDE + 2 * s, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {
                RIGHT codes;
                coopMatLoad(codes, w_tile, (wave_n + 16 * j) * STRIDE + 2 * s, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) totals[i][j] = coopMatMulAdd(tokens[i], codes, totals[i][j]);
            }
        }
        barrier();
    }
    float units[FRAGMENTS_T][2], factors[FRAGMENTS_N][4];
    int sums[FRAGMENTS_T][2];
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
        [[unroll]] for (uint g = 0; g < 2; g++) {
            uint t = min(t0 + wave_t + 16 * i + ROW(4 * g), p.rows - 1);
            units[i][g] = scale[t];
            sums[i][g] = qsum[t];
        }
    [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++)
        [[unroll]] for (uint e = 0; e < 4; e++) factors[j][e] = wscale[min(n0 + wave_n + 16 * j + COLUMN(e), p.outs - 1)];
#define SCALED(I, J, E) float(totals[I][J][E] - sums[I][(E) / 4]) * units[I][(E) / 4] * factors[J][(E) % 4]
    PUT(SCALED)
}

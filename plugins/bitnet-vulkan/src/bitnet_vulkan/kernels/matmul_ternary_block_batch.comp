#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "prelude.glsl"
#include "matrix.glsl"
#include "matrix_batch.glsl"
// matmul_ternary_block for the rows of a batch on matrix units, as matmul_ternary_batch.comp; sums of 32 columns are
// exact and then scaled. Formula as in matmul_ternary_block.comp.
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };
layout(std430, binding = 3) readonly buffer Scale4 { vec4 scale4[]; };
layout(std430, binding = 4) readonly buffer Qsum { int qsum[]; };
layout(std430, binding = 5) buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

const uint HALVES = BLOCK == 64 ? 2 : 1;  // parts of 128 columns of weights with their own scales
const int LIFT = 0x4b400000;              // start of sums of 64 (1 - code) q; as a float it is LIFTED plus the sum
const float LIFTED = 12582912.0, UNIT = -1.0 / 64.0;

void main() {
    uint lane = gl_SubgroupInvocationID, area = gl_SubgroupID * AREA, blocks = p.width / 128;
    uint n0 = gl_WorkGroupID.x * TILE_N, t0 = gl_WorkGroupID.y * TILE_T, scales = (p.width + BLOCK - 1) / BLOCK;
    uvec4 w_next[W_LOADS], q_next[Q_LOADS];
    float totals[FRAGMENTS_T][FRAGMENTS_N][ELEMENTS];
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++)
            [[unroll]] for (uint e = 0; e < ELEMENTS; e++) totals[i][j][e] = 0.0;
    LOAD(gl_SubgroupID)
    for (uint b = gl_SubgroupID; b < blocks; b += WAVES_K) {
        vec4 units[FRAGMENTS_T][2];  // of an invocation's tokens, for each plane
        float factors[FRAGMENTS_N][4][HALVES];
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
            [[unroll]] for (uint g = 0; g < 2; g++) {
                uint token = min(t0 + 16 * i + ROW(4 * g), p.rows - 1);
                units[i][g] = vec4(UNIT);
                if (ABLOCK != 0) units[i][g] = scale4[token * blocks + b] * UNIT;
            }
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++)
            [[unroll]] for (uint e = 0; e < 4; e++)
                [[unroll]] for (uint h = 0; h < HALVES; h++)
                    factors[j][e][h] = wscale[min(n0 + 16 * j + COLUMN(e), p.outs - 1) * scales + (128 * b + 64 * h) / BLOCK];
        // inverting the lower of the two upper bits of a byte turns it into 64 (1 - code)
        [[unroll]] for (uint i = 0; i < W_LOADS; i++)
            [[unroll]] for (uint s = 0; s < 4; s++)
                pool[area + W_PLACE(i) + 2 * s] = ((w_next[i] << (2 * s)) ^ 0x40404040u) & 0xc0c0c0c0u;
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
                [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
                    SUM sums = coopMatMulAdd(tokens[i], codes, SUM(LIFT));
                    [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {
                        float exact = intBitsToFloat(sums[e]) - LIFTED;
                        totals[i][j][e] = fma(exact * units[i][e / 4][s], factors[j][e % 4][s / 2 * (HALVES - 1)], totals[i][j][e]);
                    }
                }
            }
        }
        subgroupBarrier();
    }
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++)
            [[unroll]] for (uint e = 0; e < ELEMENTS; e++)
                pool[area + PART(i, j, e) / 4][PART(i, j, e) % 4] = floatBitsToUint(totals[i][j][e]);
    barrier();
    for (uint at = LID; at < TILE_T * TILE_N; at += GROUP) {
        uint n = n0 + at % TILE_N, token = t0 + at / TILE_N;
        if (n >= p.outs || token >= p.rows) continue;
        float value = 0.0;
        [[unroll]] for (uint k = 0; k < WAVES_K; k++) value += uintBitsToFloat(pool[k * AREA + at / 4][at % 4]);
        if (ABLOCK == 0) value *= scale[token];
        uint to = token * p.y_stride + p.y_first + n;
        y[to] = ADD == 1 ? y[to] + value : value;
    }
}

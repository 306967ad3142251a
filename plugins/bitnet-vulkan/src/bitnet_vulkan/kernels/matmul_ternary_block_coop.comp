#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "prelude.glsl"
// matmul_ternary_block for many rows on matrix units, tiled as matmul_ternary_coop: each 16 x 16 x 32 product is one block of
// activations, whose sum is scaled in registers. Sums begin at 1.5 * 2^23 as f32 has it, so that their bits are those of a
// float: exact, and cheaper than a conversion. GROUP is at least TILE_N and TILE_T.
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };
layout(std430, binding = 4) readonly buffer Qsum { int qsum[]; };
layout(std430, binding = 5) buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

const uint WAVES_T = TILE_T / WAVE_T, WAVE_N = TILE_N * WAVES_T / (GROUP / WAVE);
const uint FRAGMENTS_T = WAVE_T / 16, FRAGMENTS_N = WAVE_N / 16, ELEMENTS = 8;  // of a 16 x 16 sum in each of 32
const uint STRIDE = 9;  // uvec4 of a row of 128 bytes, and one to spread rows over banks
const uint W_LOADS = (TILE_N * 2 + GROUP - 1) / GROUP, Q_LOADS = TILE_T * 8 / GROUP;
const int LIFT = 0x4b400000;
const float LIFTED = 12582912.0;
shared uvec4 w_tile[TILE_N * STRIDE];
shared uvec4 q_tile[TILE_T * STRIDE];
shared float w_units[2 * TILE_N], q_units[4 * TILE_T];  // scales: [64 columns][row], [32 columns][token]
shared int places[256];

void main() {
    uint n0 = gl_WorkGroupID.x * TILE_N, t0 = gl_WorkGroupID.y * TILE_T, blocks = p.width / 128;
    uint wave_t = gl_SubgroupID % WAVES_T * WAVE_T, wave_n = gl_SubgroupID / WAVES_T * WAVE_N;
    uint scales = (p.width + BLOCK - 1) / BLOCK;
    for (uint i = LID; i < 256; i += GROUP) places[i] = int(i);
    barrier();
    coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> place;  // which elements this invocation has
    coopMatLoad(place, places, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
    float acc[FRAGMENTS_T][FRAGMENTS_N][ELEMENTS];
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++)
            [[unroll]] for (uint e = 0; e < ELEMENTS; e++) acc[i][j][e] = 0.0;
    uvec4 w_next[W_LOADS], q_next[Q_LOADS];
    float w_unit[2], q_unit[4];
    for (uint b = 0; b <= blocks; b++) {
        if (b > 0) {
            barrier();
            [[unroll]] for (uint i = 0; i < W_LOADS; i++) {
                uint at = LID + i * GROUP, row = at / 2, half_ = at % 2;
                if (at >= 2 * TILE_N) break;
                [[unroll]] for (uint s = 0; s < 4; s++) {  // codes less 1, byte by byte
                    uvec4 codes = ((w_next[i] >> (6 - 2 * s)) & 0x03030303u) | 0x80808080u;
                    w_tile[row * STRIDE + 2 * s + half_] = (codes - 0x01010101u) ^ 0x80808080u;
                }
            }
            [[unroll]] for (uint i = 0; i < Q_LOADS; i++) {
                uint at = LID + i * GROUP;
                q_tile[at / 8 * STRIDE + at % 8] = q_next[i];
            }
            [[unroll]] for (uint s = 0; s < 4; s++)
                if (LID < TILE_T) q_units[s * TILE_T + LID] = q_unit[s];
            [[unroll]] for (uint s = 0; s < 2; s++)
                if (LID < TILE_N) w_units[s * TILE_N + LID] = w_unit[s];
            barrier();
        }
        if (b < blocks) {
            [[unroll]] for (uint i = 0; i < W_LOADS; i++) {
                uint at = LID + i * GROUP, row = n0 + at / 2;
                w_next[i] = row < p.outs && at < 2 * TILE_N ? w[(row * blocks + b) * 2 + at % 2] : uvec4(0);
            }
            [[unroll]] for (uint i = 0; i < Q_LOADS; i++) {
                uint at = LID + i * GROUP, row = t0 + at / 8;
                q_next[i] = row < p.rows ? q[(row * blocks + b) * 8 + at % 8] : uvec4(0);
            }
            bool own_t = LID < TILE_T && t0 + LID < p.rows, own_n = LID < TILE_N && n0 + LID < p.outs;
            [[unroll]] for (uint s = 0; s < 4; s++)
                q_unit[s] = ABLOCK == 0 ? 1.0 : own_t ? scale[((t0 + LID) * blocks + b) * 4 + s] : 0.0;
            [[unroll]] for (uint s = 0; s < 2; s++)
                w_unit[s] = own_n ? wscale[(n0 + LID) * scales + (128 * b + 64 * s) / BLOCK] : 0.0;
        }
        if (b > 0) {
            [[unroll]] for (uint s = 0; s < 4; s++) {
                coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA> a[FRAGMENTS_T];
                float unit[FRAGMENTS_T][ELEMENTS];
                [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
                    coopMatLoad(a[i], q_tile, (wave_t + 16 * i) * STRIDE + 2 * s, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (uint e = 0; e < ELEMENTS; e++)
                        unit[i][e] = q_units[s * TILE_T + wave_t + 16 * i + uint(place[e]) / 16];
                }
                [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {
                    coopmat<int8_t, gl_ScopeSubgroup, 32, 16, gl_MatrixUseB> codes;
                    uint at = (wave_n + 16 * j) * STRIDE + 2 * s;
                    coopMatLoad(codes, w_tile, at, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                    float factor[ELEMENTS];
                    [[unroll]] for (uint e = 0; e < ELEMENTS; e++)
                        factor[e] = w_units[s / 2 * TILE_N + wave_n + 16 * j + uint(place[e]) % 16];
                    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
                        coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sum;
                        sum = coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(LIFT);
                        sum = coopMatMulAdd(a[i], codes, sum);
                        [[unroll]] for (uint e = 0; e < ELEMENTS; e++)
                            acc[i][j][e] += (intBitsToFloat(sum[e]) - LIFTED) * unit[i][e] * factor[e];
                    }
                }
            }
        }
    }
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++)
            [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {
                uint t = t0 + wave_t + 16 * i + uint(place[e]) / 16, n = n0 + wave_n + 16 * j + uint(place[e]) % 16;
                if (n >= p.outs || t >= p.rows) continue;
                float value = ABLOCK == 0 ? acc[i][j][e] * scale[t] : acc[i][j][e];
                uint at = t * p.y_stride + p.y_first + n;
                y[at] = ADD == 1 ? y[at] + value : value;
            }
}

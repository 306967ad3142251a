#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "prelude.glsl"
// matmul_ternary for many rows on matrix units: a workgroup makes TILE_T tokens x TILE_N outputs out of
// 16 x 16 x 32 products of signed bytes with 32-bit sums. Per step of 128 columns the codes (unpacked to bytes) and the
// activations go through shared memory, while the next ones are on their way to registers.
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };
layout(std430, binding = 4) readonly buffer Qsum { int qsum[]; };
layout(std430, binding = 5) buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

const uint WAVES_T = TILE_T / WAVE_T, WAVE_N = TILE_N * WAVES_T / (GROUP / WAVE);
const uint FRAGMENTS_T = WAVE_T / 16, FRAGMENTS_N = WAVE_N / 16;
const uint STRIDE = 9;  // uvec4 of a row of 128 bytes, and one to spread rows over banks
const uint W_LOADS = (TILE_N * 2 + GROUP - 1) / GROUP, Q_LOADS = TILE_T * 8 / GROUP;
shared uvec4 w_tile[TILE_N * STRIDE];
shared uvec4 q_tile[TILE_T * STRIDE];
shared int out_tile[GROUP / WAVE * 256];  // 16 x 16 of each subgroup

void main() {
    uint n0 = gl_WorkGroupID.x * TILE_N, t0 = gl_WorkGroupID.y * TILE_T, blocks = p.width / 128;
    uint wave_t = gl_SubgroupID % WAVES_T * WAVE_T, wave_n = gl_SubgroupID / WAVES_T * WAVE_N;
    coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[FRAGMENTS_T][FRAGMENTS_N];
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++)
            acc[i][j] = coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0);
    uvec4 w_next[W_LOADS], q_next[Q_LOADS];
    for (uint b = 0; b <= blocks; b++) {
        if (b > 0) {
            barrier();
            [[unroll]] for (uint i = 0; i < W_LOADS; i++) {
                uint at = LID + i * GROUP, row = at / 2, half_ = at % 2;
                if (at >= 2 * TILE_N) break;
                [[unroll]] for (uint s = 0; s < 4; s++)
                    w_tile[row * STRIDE + 2 * s + half_] = (w_next[i] >> (6 - 2 * s)) & 0x03030303u;
            }
            [[unroll]] for (uint i = 0; i < Q_LOADS; i++) {
                uint at = LID + i * GROUP;
                q_tile[at / 8 * STRIDE + at % 8] = q_next[i];
            }
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
        }
        if (b > 0) {
            [[unroll]] for (uint k = 0; k < 8; k += 2) {
                coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA> a[FRAGMENTS_T];
                [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
                    coopMatLoad(a[i], q_tile, (wave_t + 16 * i) * STRIDE + k, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {
                    coopmat<int8_t, gl_ScopeSubgroup, 32, 16, gl_MatrixUseB> codes;
                    uint at = (wave_n + 16 * j) * STRIDE + k;
                    coopMatLoad(codes, w_tile, at, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) acc[i][j] = coopMatMulAdd(a[i], codes, acc[i][j]);
                }
            }
        }
    }
    uint lane = gl_SubgroupInvocationID, column = lane % 16;
    [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {
        uint n = n0 + wave_n + 16 * j + column;
        float factor = n < p.outs ? wscale[n] : 0.0;
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
            coopMatStore(acc[i][j], out_tile, gl_SubgroupID * 256, 16, gl_CooperativeMatrixLayoutRowMajor);
            subgroupBarrier();
            for (uint row = lane / 16; row < 16; row += gl_SubgroupSize / 16) {
                uint t = t0 + wave_t + 16 * i + row;
                if (n >= p.outs || t >= p.rows) continue;
                float value = float(out_tile[gl_SubgroupID * 256 + row * 16 + column] - qsum[t]) * scale[t] * factor;
                uint at = t * p.y_stride + p.y_first + n;
                y[at] = ADD == 1 ? y[at] + value : value;
            }
            subgroupBarrier();
        }
    }
}

#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "prelude.glsl"
// matmul_ternary for many rows on matrix units: a workgroup makes TILE_T tokens x TILE_N outputs out of
// 16 x 16 x 32 products of signed bytes with 32-bit sums. Codes (unpacked to bytes) and activations of 64 columns lie in one
// half of shared memory; the next 64 columns are put into the other half meanwhile, those after them come to registers.
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };
layout(std430, binding = 4) readonly buffer Qsum { int qsum[]; };
layout(std430, binding = 5) buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

const uint WAVES_T = TILE_T / WAVE_T, WAVE_N = TILE_N * WAVES_T / (GROUP / WAVE);
const uint FRAGMENTS_T = WAVE_T / 16, FRAGMENTS_N = WAVE_N / 16;
const uint STRIDE = 5;  // uvec4 of a row of 64 bytes, and one to spread rows over banks
const uint W_TILE = TILE_N * STRIDE, Q_TILE = TILE_T * STRIDE;
const uint W_LOADS = (TILE_N * 2 + GROUP - 1) / GROUP, Q_LOADS = TILE_T * 4 / GROUP;
shared uvec4 w_tile[2 * W_TILE], q_tile[2 * Q_TILE];  // at the end 16 x 16 sums of each subgroup

// The codes of 128 columns of this workgroup's rows, and the activations of half of them.
#define LOAD_W(B)                                                                                                   \
    [[unroll]] for (uint i = 0; i < W_LOADS; i++) {                                                                 \
        uint at = LID + i * GROUP, row = n0 + at / 2;                                                               \
        w_next[i] = row < p.outs && at < 2 * TILE_N ? w[(row * blocks + (B)) * 2 + at % 2] : uvec4(0);              \
    }
#define LOAD_Q(TO, B, HALF)                                                                                         \
    [[unroll]] for (uint i = 0; i < Q_LOADS; i++) {                                                                 \
        uint at = LID + i * GROUP, row = t0 + at / 4;                                                               \
        TO[i] = row < p.rows ? q[(row * blocks + (B)) * 8 + 4 * HALF + at % 4] : uvec4(0);                          \
    }

#define STAGE(Q_NEXT, HALF)                                                                                         \
    {                                                                                                               \
        [[unroll]] for (uint i = 0; i < W_LOADS; i++) {                                                             \
            uint at = LID + i * GROUP;                                                                              \
            if (at >= 2 * TILE_N) break;                                                                            \
            [[unroll]] for (uint s = 0; s < 2; s++)                                                                 \
                w_tile[HALF * W_TILE + at / 2 * STRIDE + 2 * s + at % 2] =                                          \
                    (w_now[i] >> (6 - 4 * HALF - 2 * s)) & 0x03030303u;                                             \
        }                                                                                                           \
        [[unroll]] for (uint i = 0; i < Q_LOADS; i++) {                                                             \
            uint at = LID + i * GROUP;                                                                              \
            q_tile[HALF * Q_TILE + at / 4 * STRIDE + at % 4] = Q_NEXT[i];                                           \
        }                                                                                                           \
    }

#define PRODUCTS(HALF)                                                                                              \
    [[unroll]] for (uint k = 0; k < 4; k += 2) {                                                                    \
        coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA> a[FRAGMENTS_T];                                    \
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {                                                         \
            uint at = HALF * Q_TILE + (wave_t + 16 * i) * STRIDE + k;                                               \
            coopMatLoad(a[i], q_tile, at, STRIDE, gl_CooperativeMatrixLayoutRowMajor);                              \
        }                                                                                                           \
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {                                                         \
            coopmat<int8_t, gl_ScopeSubgroup, 32, 16, gl_MatrixUseB> codes;                                         \
            uint at = HALF * W_TILE + (wave_n + 16 * j) * STRIDE + k;                                               \
            coopMatLoad(codes, w_tile, at, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);                          \
            [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) acc[i][j] = coopMatMulAdd(a[i], codes, acc[i][j]);    \
        }                                                                                                           \
    }

void main() {
    uint n0 = gl_WorkGroupID.x * TILE_N, t0 = gl_WorkGroupID.y * TILE_T, blocks = p.width / 128;
    uint wave_t = gl_SubgroupID % WAVES_T * WAVE_T, wave_n = gl_SubgroupID / WAVES_T * WAVE_N;
    coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[FRAGMENTS_T][FRAGMENTS_N];
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++)
            acc[i][j] = coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0);
    uvec4 w_now[W_LOADS], w_next[W_LOADS], q_low[Q_LOADS], q_high[Q_LOADS];
    LOAD_W(0)
    LOAD_Q(q_low, 0, 0)
    LOAD_Q(q_high, 0, 1)
    [[unroll]] for (uint i = 0; i < W_LOADS; i++) w_now[i] = w_next[i];
    STAGE(q_low, 0)
    barrier();
    for (uint b = 0; b < blocks; b++) {
        bool more = b + 1 < blocks;
        if (more) {
            LOAD_W(b + 1)
            LOAD_Q(q_low, b + 1, 0)
        }
        PRODUCTS(0)
        STAGE(q_high, 1)
        if (more) LOAD_Q(q_high, b + 1, 1)
        barrier();
        PRODUCTS(1)
        if (more) {
            [[unroll]] for (uint i = 0; i < W_LOADS; i++) w_now[i] = w_next[i];
            STAGE(q_low, 0)
        }
        barrier();
    }
    uint lane = gl_SubgroupInvocationID, column = lane % 16, area = gl_SubgroupID * 64;
    [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {
        uint n = n0 + wave_n + 16 * j + column;
        float factor = n < p.outs ? wscale[n] : 0.0;
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
            coopMatStore(acc[i][j], w_tile, area, 4, gl_CooperativeMatrixLayoutRowMajor);
            subgroupBarrier();
            for (uint row = lane / 16; row < 16; row += gl_SubgroupSize / 16) {
                uint t = t0 + wave_t + 16 * i + row;
                if (n >= p.outs || t >= p.rows) continue;
                int sum = int(w_tile[area + row * 4 + column / 4][column % 4]);
                float value = float(sum - qsum[t]) * scale[t] * factor;
                uint at = t * p.y_stride + p.y_first + n;
                y[at] = ADD == 1 ? y[at] + value : value;
            }
            subgroupBarrier();
        }
    }
}

#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "prelude.glsl"
#include "matrix.glsl"
#include "matrix_tiles.glsl"
// matmul_ternary_block for many rows on matrix units, tiled as matmul_ternary_coop.comp: each 16 x 16 x 32 product is
// one block of activations; its sums are scaled in registers. Sums start at the bits of 1.5 * 2^23, so that their bits
// are those of a float: exact, and cheaper than a conversion. Formula as in matmul_ternary_block.comp.
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };
layout(std430, binding = 3) readonly buffer Scales { vec4 scales[]; };  // of a token's 128 columns
layout(std430, binding = 4) readonly buffer Qsum { int qsum[]; };
layout(std430, binding = 5) buffer Y { float y[]; };
layout(std430, binding = 5) buffer Y2 { vec2 y2[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

const uint SCALES = BLOCK == 64 ? 2 : 1, PLANES = 4 / SCALES;  // weight scales of 128 columns; planes that share one
const int LIFT = 0x4b400000;                                   // start of sums of 64 (1 - code) q
const float LIFTED = 12582912.0, UNIT = -1.0 / 64.0;
shared uvec4 w_tile[TILE_N * STRIDE], q_tile[TILE_T * STRIDE];
shared vec4 q_units[TILE_T];
shared float w_units[SCALES * TILE_N];

#define LOAD_UNITS(B)                                                                                            \
    if (ABLOCK != 0 && LID < TILE_T) q_unit = scales[min(t0 + LID, p.rows - 1) * blocks + (B)];                  \
    if (LID < TILE_N)                                                                                            \
        [[unroll]] for (uint h = 0; h < SCALES; h++) w_unit[h] = wscale[w_scales + (128 * (B) + 64 * h) / BLOCK];

void main() {
    uint n0 = TILE_FIRST_N, t0 = TILE_FIRST_T, blocks = p.width / 128;
    uint wave_t = gl_SubgroupID % WAVES_T * WAVE_T, wave_n = gl_SubgroupID / WAVES_T * WAVE_N;
    uint w_from[W_LOADS], q_from[Q_LOADS], w_scales = min(n0 + LID, p.outs - 1) * ((p.width + BLOCK - 1) / BLOCK);
    uvec4 w_next[W_LOADS], q_next[Q_LOADS];
    vec4 q_unit = vec4(1.0);
    float w_unit[SCALES];
    PLACES(w_from, q_from)
    float totals[FRAGMENTS_T][FRAGMENTS_N][ELEMENTS];
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
        [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++)
            [[unroll]] for (uint e = 0; e < ELEMENTS; e++) totals[i][j][e] = 0.0;
    LOAD(0)
    LOAD_UNITS(0)
    for (uint b = 0; b < blocks; b++) {
        // inverting the lower of the two upper bits of a byte turns it into 64 (1 - code)
        [[unroll]] for (uint i = 0; i < W_LOADS; i++) {
            uint to = W_ROW(LID + i * GROUP) * STRIDE + LID % 2;
            if (LID + i * GROUP >= 2 * TILE_N) break;
            [[unroll]] for (uint s = 0; s < 4; s++) w_tile[to + 2 * s] = ((w_next[i] << (2 * s)) ^ 0x40404040u) & 0xc0c0c0c0u;
        }
        STORE_Q
        if (LID < TILE_T) q_units[LID] = q_unit;
        if (LID < TILE_N)
            [[unroll]] for (uint h = 0; h < SCALES; h++) w_units[h * TILE_N + LID] = w_unit[h] * UNIT;
        barrier();
        if (b + 1 < blocks) {
            LOAD(b + 1)
            LOAD_UNITS(b + 1)
        }
        [[unroll]] for (uint h = 0; h < SCALES; h++) {
            LEFT tokens[FRAGMENTS_T][PLANES];
            vec4 units[FRAGMENTS_T][2];
            [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
                [[unroll]] for (uint s = 0; s < PLANES; s++) {
                    uint from = (wave_t + 16 * i) * STRIDE + 2 * (PLANES * h + s);
                    coopMatLoad(tokens[i][s], q_tile, from, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (uint g = 0; g < 2; g++) units[i][g] = q_units[wave_t + 16 * i + ROW(4 * g)];
            }
            [[unroll]] for (uint j = 0; j < FRAGMENTS_N; j++) {
                RIGHT codes[PLANES];
                [[unroll]] for (uint s = 0; s < PLANES; s++) {
                    uint from = (wave_n + 16 * j) * STRIDE + 2 * (PLANES * h + s);
                    coopMatLoad(codes[s], w_tile, from, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                }
                float factor[4];
                [[unroll]] for (uint e = 0; e < 4; e++) factor[e] = w_units[h * TILE_N + wave_n + 16 * j + COLUMN(e)];
                [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
                    float parts[ELEMENTS];
                    [[unroll]] for (uint e = 0; e < ELEMENTS; e++) parts[e] = 0.0;
                    [[unroll]] for (uint s = 0; s < PLANES; s++) {
                        SUM sums = SUM(LIFT);
                        sums = coopMatMulAdd(tokens[i][s], codes[s], sums);
                        [[unroll]] for (uint e = 0; e < ELEMENTS; e++)
                            parts[e] += (intBitsToFloat(sums[e]) - LIFTED) * units[i][e / 4][PLANES * h + s];
                    }
                    [[unroll]] for (uint e = 0; e < ELEMENTS; e++) totals[i][j][e] += parts[e] * factor[e % 4];
                }
            }
        }
        barrier();
    }
    float units[FRAGMENTS_T][2];
    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
        [[unroll]] for (uint g = 0; g < 2; g++)
            units[i][g] = ABLOCK == 0 ? scale[min(t0 + wave_t + 16 * i + ROW(4 * g), p.rows - 1)] : 1.0;
#define SCALED(I, J, E) totals[I][J][E] * units[I][(E) / 4]
    PUT(SCALED)
}

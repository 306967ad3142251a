#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "prelude.glsl"
#include "matrix.glsl"
#include "matrix_tiles.glsl"
// matmul_ternary_block_coop for activations with one scale per 128 columns (ABLOCK 128): products over columns that
// share both scales are added as integers and scaled once. Formula as in matmul_ternary_block.comp.
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };  // four equal ones per 128 columns
layout(std430, binding = 4) readonly buffer Qsum { int qsum[]; };
layout(std430, binding = 5) buffer Y { float y[]; };
layout(std430, binding = 5) buffer Y2 { vec2 y2[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

const uint SCALES = BLOCK == 64 ? 2 : 1, PLANES = 4 / SCALES;  // weight scales of 128 columns; planes that share one
// Outputs of a large part are computed in two halves, since registers cannot hold all sums and totals.
const uint PARTS = FRAGMENTS_T * FRAGMENTS_N > 8 ? 2 : 1, PART = FRAGMENTS_N / PARTS;
const int LIFT = 0x4b400000;  // start of sums of 64 (1 - code) q
const float LIFTED = 12582912.0, UNIT = -1.0 / 64.0;
shared uvec4 w_tile[TILE_N * STRIDE], q_tile[TILE_T * STRIDE];
shared vec2 q_units[TILE_T];
shared float w_units[SCALES * TILE_N];

#define LOAD_UNITS(B)                                                                                            \
    q_unit = scale[(min(t0 + LID % TILE_T, p.rows - 1) * blocks + (B)) * 4];                                     \
    [[unroll]] for (uint h = 0; h < SCALES; h++) w_unit[h] = wscale[w_scales + (128 * (B) + 64 * h) / BLOCK];

// A scale rounded to 22 bits, so that LIFTED times it is exact: (LIFTED + sum) * x + y is sum times the scale, rounded
// once.
vec2 lifted(float unit) {
    unit = uintBitsToFloat((floatBitsToUint(unit) + 2u) & ~3u);
    return vec2(unit, -LIFTED * unit);
}

void main() {
    uint n0 = TILE_FIRST_N, t0 = TILE_FIRST_T, blocks = p.width / 128;
    uint wave_t = gl_SubgroupID % WAVES_T * WAVE_T, wave_n = gl_SubgroupID / WAVES_T * WAVE_N;
    uint w_from[W_LOADS], q_from[Q_LOADS];
    uint w_scales = min(n0 + LID % TILE_N, p.outs - 1) * ((p.width + BLOCK - 1) / BLOCK);
    uvec4 w_next[W_LOADS], q_next[Q_LOADS];
    float q_unit, w_unit[SCALES];
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
            if (W_LOADS * GROUP != 2 * TILE_N && LID + i * GROUP >= 2 * TILE_N) break;
            [[unroll]] for (uint s = 0; s < 4; s++) w_tile[to + 2 * s] = ((w_next[i] << (2 * s)) ^ 0x40404040u) & 0xc0c0c0c0u;
        }
        STORE_Q
        q_units[LID % TILE_T] = lifted(q_unit);
        [[unroll]] for (uint h = 0; h < SCALES; h++) w_units[h * TILE_N + LID % TILE_N] = w_unit[h] * UNIT;
        uint then = min(b + 1, blocks - 1);
        LOAD(then)
        LOAD_UNITS(then)
        barrier();
        vec2 units[FRAGMENTS_T][2];
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
            [[unroll]] for (uint g = 0; g < 2; g++) units[i][g] = q_units[wave_t + 16 * i + ROW(4 * g)];
        [[unroll]] for (uint h = 0; h < SCALES; h++)
            [[unroll]] for (uint first = 0; first < FRAGMENTS_N; first += PART) {
                SUM sums[FRAGMENTS_T][PART];
                [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
                    [[unroll]] for (uint j = 0; j < PART; j++) sums[i][j] = SUM(LIFT);
                [[unroll]] for (uint s = PLANES * h; s < PLANES * h + PLANES; s++) {
                    LEFT tokens[FRAGMENTS_T];
                    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
                        uint from = (wave_t + 16 * i) * STRIDE + 2 * s;
                        coopMatLoad(tokens[i], q_tile, from, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                    }
                    [[unroll]] for (uint j = 0; j < PART; j++) {
                        RIGHT codes;
                        uint from = (wave_n + 16 * (first + j)) * STRIDE + 2 * s;
                        coopMatLoad(codes, w_tile, from, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) sums[i][j] = coopMatMulAdd(tokens[i], codes, sums[i][j]);
                    }
                }
                [[unroll]] for (uint j = 0; j < PART; j++) {
                    float factor[4];
                    [[unroll]] for (uint e = 0; e < 4; e++)
                        factor[e] = w_units[h * TILE_N + wave_n + 16 * (first + j) + COLUMN(e)];
                    [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
                        [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {
                            float part = fma(intBitsToFloat(sums[i][j][e]), units[i][e / 4][0], units[i][e / 4][1]);
                            totals[i][first + j][e] += part * factor[e % 4];
                        }
                }
                if (PARTS > 1) subgroupBarrier();  // otherwise NVIDIA's compiler computes both at once
            }
        barrier();
    }
#define SCALED(I, J, E) totals[I][J][E]
    PUT(SCALED)
}

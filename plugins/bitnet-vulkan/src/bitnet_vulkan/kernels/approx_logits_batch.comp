#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "prelude.glsl"
#include "matrix.glsl"
// approx_logits for the rows of a batch on matrix units, for a multiple of 64 columns; formulas as in
// approx_logits.comp. x is the sum of two f16 as in matmul_dense_batch.comp, and codes are exact in f16. A subgroup
// computes 16 TILES rows of the head and loads their codes from memory directly into the left operand: invocation t modulo 4 has columns 16 t ..
// 16 t + 15 of each 64, four of them in each step of 16, so the columns of x are in that order too.
layout(std430, binding = 0) readonly buffer X { vec4 x4[]; };
layout(std430, binding = 1) readonly buffer Codes { uvec4 codes[]; };
layout(std430, binding = 2) readonly buffer Scale { float scale[]; };
layout(std430, binding = 3) readonly buffer Error { float error[]; };
layout(std430, binding = 4) buffer Logits { float logits[]; };
layout(std430, binding = 5) writeonly buffer Bound { float bound[]; };
layout(push_constant) uniform Params { uint rows, outs, width, stride; } p;

const uint TILES = TILE_N / (16 * (GROUP / WAVE)), FRAGMENTS_T = TILE_T / 16;
const uint CHUNK = 256, STRIDE = CHUNK / 8 + 1;  // uvec4 of a row, plus one to spread rows over banks
const uint SHARERS = GROUP / TILE_T;  // invocations that search the largest value of a row
const uint SIDE = 64, SIDES = TILE_N / SIDE;
const float MOST = 65504.0, SLACK = 1.000003;  // SLACK exceeds the error of a sum of squares in f32
shared uvec4 high[TILE_T * STRIDE], low[TILE_T * STRIDE];
shared uint largest[TILE_T], best[SIDES * TILE_T], spoiled[SIDES * TILE_T];
shared float size[TILE_T];

#define LEFT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define SUM coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

// Returns the power of two that a row is multiplied by, from its largest value's bits; 1 if that is not finite.
uint factor_of(uint bits) {
    uint exponent = bits >> 23;
    return exponent == 255u ? 127u : 254u - min(max(exponent, 1u), 253u);
}

// Returns an integer with the order of the floats.
uint order_of(float v) {
    uint bits = floatBitsToUint(v);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
float value_of(uint order) { return uintBitsToFloat((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order); }

// Reads the rows of x of this workgroup: the bits of their largest values, and their norms.
void measure(uint t0) {
    uint own = LID / SHARERS, most = 0u;
    float squares = 0.0;
    for (uint at = LID % SHARERS; at < p.width / 4; at += SHARERS) {
        vec4 v = x4[min(t0 + own, p.rows - 1) * (p.width / 4) + at];
        uvec4 bits = floatBitsToUint(v) & 0x7fffffffu;
        most = max(most, max(max(bits[0], bits[1]), max(bits[2], bits[3])));
        squares += v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3];
    }
    [[unroll]] for (uint d = SHARERS / 2; d > 0; d >>= 1) {
        squares += subgroupShuffleXor(squares, d);
        most = max(most, subgroupShuffleXor(most, d));
    }
    if (LID % SHARERS == 0) {
        largest[own] = most;
        size[own] = sqrt(squares) * SLACK;
    }
    for (uint at = LID; at < SIDES * TILE_T; at += GROUP) {
        best[at] = 0u;
        spoiled[at] = 0u;
    }
}

// Splits columns chunk .. of the rows of x into f16 in shared memory.
void split(uint t0, uint chunk, uint columns) {
    for (uint at = LID; at < TILE_T * (CHUNK / 4); at += GROUP) {
        uint token = at / (CHUNK / 4), four = at % (CHUNK / 4);
        if (4 * four >= columns) continue;
        float factor = uintBitsToFloat(factor_of(largest[token]) << 23);
        vec4 v = x4[min(t0 + token, p.rows - 1) * (p.width / 4) + chunk / 4 + four] * factor;
        vec4 bound_ = clamp(v, -MOST, MOST);
        vec4 cut = uintBitsToFloat(floatBitsToUint(bound_) & 0xffffe000u), rest = v - cut;
        uint to = token * STRIDE + four / 16 * 8 + four % 4 * 2, part = four % 16 / 4;
        high[to][part] = packHalf2x16(vec2(cut[0], cut[2]));
        high[to + 1][part] = packHalf2x16(vec2(cut[1], cut[3]));
        low[to][part] = packHalf2x16(vec2(rest[0], rest[2]));
        low[to + 1][part] = packHalf2x16(vec2(rest[1], rest[3]));
    }
}

// 64 columns of an invocation's rows of the head.
#define LOAD(COLUMN_)                                                                                            \
    [[unroll]] for (uint r = 0; r < 2 * TILES; r++)                                                              \
        next[r] = codes[min(n0 + 8 * r + lane / 4, p.outs - 1) * (p.width / 16) + (COLUMN_) / 16 + lane % 4];

// Joins a logit to the bound of its 64 rows.
void finish(uint token, uint n, float value) {
    float least = value - error[n] * size[token];
    uint side = (n / SIDE) % SIDES * TILE_T + token;
    if (not_finite(least)) atomicMax(spoiled[side], 1u);
    else atomicMax(best[side], order_of(least));
}

void main() {
    uint lane = gl_SubgroupInvocationID, t0 = gl_WorkGroupID.y * TILE_T;
    uint n0 = gl_WorkGroupID.x * TILE_N + gl_SubgroupID * 16 * TILES;
    uvec4 next[2 * TILES], words[2 * TILES];
    SUM totals[TILES][FRAGMENTS_T];
    LOAD(0)
    [[unroll]] for (uint m = 0; m < TILES; m++)
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) totals[m][i] = SUM(0.0);
    measure(t0);
    for (uint chunk = 0; chunk < p.width; chunk += CHUNK) {
        uint columns = min(CHUNK, p.width - chunk);
        barrier();
        split(t0, chunk, columns);
        barrier();
        for (uint c = 0; c < columns; c += 64) {
            [[unroll]] for (uint r = 0; r < 2 * TILES; r++) words[r] = next[r];
            LOAD(min(chunk + c + 64, p.width - 64))
            [[unroll]] for (uint j = 0; j < 4; j++) {
                LEFT rows[TILES];
                [[unroll]] for (uint m = 0; m < TILES; m++)
                    [[unroll]] for (uint r = 0; r < 2; r++)
                        [[unroll]] for (uint h = 0; h < 2; h++) {
                            // the bits of 1024 + 128 + code are those of 1024, and the code with its sign inverted
                            uint lifted = ((words[2 * m + r][j] >> (8 * h)) & 0x00ff00ffu) ^ 0x64806480u;
                            f16vec2 two = unpackFloat2x16(lifted) - f16vec2(1152.0);
                            rows[m][4 * r + 2 * h] = two.x;
                            rows[m][4 * r + 2 * h + 1] = two.y;
                        }
                [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {
                    RIGHT fine;
                    RIGHT coarse;
                    uint from = 16 * i * STRIDE + c / 8 + 2 * j;
                    coopMatLoad(fine, low, from, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                    coopMatLoad(coarse, high, from, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint m = 0; m < TILES; m++) {
                        totals[m][i] = coopMatMulAdd(rows[m], fine, totals[m][i]);
                        totals[m][i] = coopMatMulAdd(rows[m], coarse, totals[m][i]);
                    }
                }
            }
        }
    }
    [[unroll]] for (uint m = 0; m < TILES; m++)
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
            [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {
                uint n = n0 + 16 * m + ROW(e), token = 16 * i + COLUMN(e);
                if (n >= p.outs || t0 + token >= p.rows) continue;
                float value = totals[m][i][e] * uintBitsToFloat((254u - factor_of(largest[token])) << 23) * scale[n];
                logits[(t0 + token) * p.stride + n] = value;
                finish(token, n, value);
            }
    barrier();
    uint sides = (p.outs + SIDE - 1) / SIDE;
    for (uint at = LID; at < SIDES * TILE_T; at += GROUP) {
        uint side = gl_WorkGroupID.x * SIDES + at / TILE_T, token = t0 + at % TILE_T;
        if (side >= sides || token >= p.rows) continue;
        bound[token * sides + side] = spoiled[at] != 0 ? uintBitsToFloat(NAN_BITS) : value_of(best[at]);
    }
}

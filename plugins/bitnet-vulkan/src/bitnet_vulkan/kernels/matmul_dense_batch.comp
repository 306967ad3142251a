#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "prelude.glsl"
#include "matrix.glsl"
// matmul_dense for the rows of a batch on matrix units; f16 tables with a multiple of 64 columns: y[l, y_first + n] =
// sum_k x[l,k] w[n,k]. Rows of x are scaled by a power of two so that the largest value lies in [1, 2), and split into
// two f16 (22 bits), CHUNK columns at a time in shared memory.
// A subgroup computes 16 TILES outputs and loads their weights from memory directly into the left operand: invocation t
// modulo 4 has columns 8t .. 8t + 7 of each 32, so the columns of x are in that order too.
layout(std430, binding = 0) readonly buffer X { vec4 x4[]; };
layout(std430, binding = 1) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 2) buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

const uint TILES = TILE_N / (16 * (GROUP / WAVE)), FRAGMENTS_T = TILE_T / 16;
const uint CHUNK = 256, STRIDE = CHUNK / 8 + 1;  // uvec4 of a row, plus one to spread rows over banks
const uint SHARERS = GROUP / TILE_T;  // invocations that search the largest value of a row
const float MOST = 65504.0;
shared uvec4 high[TILE_T * STRIDE], low[TILE_T * STRIDE];
shared uint largest[TILE_T];

#define LEFT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define SUM coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

// Returns the power of two that a row is multiplied by, from its largest value's bits; 1 if that is not finite.
uint factor_of(uint bits) {
    uint exponent = bits >> 23;
    return exponent == 255u ? 127u : 254u - min(max(exponent, 1u), 253u);
}

// 64 columns of an invocation's matrix rows.
#define LOAD(COLUMN_)                                                                                            \
    [[unroll]] for (uint r = 0; r < 2 * TILES; r++)                                                              \
        [[unroll]] for (uint h = 0; h < 2; h++)                                                                  \
            next[r][h] = w[min(n0 + 8 * r + lane / 4, p.outs - 1) * (p.width / 8) + (COLUMN_) / 8 + 4 * h + lane % 4];
// One of the two products of 32 columns. FIRST, FIRST + 1: words of rows A and B; PLACE: their place in shared memory.
#define PRODUCT(A, B, FIRST, PLACE)                                                                              \
    {                                                                                                            \
        LEFT weights;                                                                                            \
        [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {                                                         \
            uint word = e < 4 ? A[FIRST + e / 2] : B[FIRST + e / 2 - 2];                                         \
            weights[e] = unpackFloat2x16(word)[e % 2];                                                           \
        }                                                                                                        \
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++) {                                                      \
            RIGHT fine;                                                                                          \
            RIGHT coarse;                                                                                        \
            coopMatLoad(fine, low, 16 * i * STRIDE + (PLACE), STRIDE, gl_CooperativeMatrixLayoutColumnMajor);    \
            coopMatLoad(coarse, high, 16 * i * STRIDE + (PLACE), STRIDE, gl_CooperativeMatrixLayoutColumnMajor); \
            SUM sum;                                                                                             \
            [[unroll]] for (uint e = 0; e < ELEMENTS; e++) sum[e] = totals[m][i][e];                             \
            sum = coopMatMulAdd(weights, fine, sum);                                                             \
            sum = coopMatMulAdd(weights, coarse, sum);                                                           \
            [[unroll]] for (uint e = 0; e < ELEMENTS; e++) totals[m][i][e] = sum[e];                             \
        }                                                                                                        \
    }

void main() {
    uint lane = gl_SubgroupInvocationID, t0 = gl_WorkGroupID.y * TILE_T;
    uint n0 = gl_WorkGroupID.x * TILE_N + gl_SubgroupID * 16 * TILES;
    uvec4 next[2 * TILES][2], words[2 * TILES][2];
    float totals[TILES][FRAGMENTS_T][ELEMENTS];
    LOAD(0)
    [[unroll]] for (uint m = 0; m < TILES; m++)
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
            [[unroll]] for (uint e = 0; e < ELEMENTS; e++) totals[m][i][e] = 0.0;
    if (LID < TILE_T) largest[LID] = 0u;
    barrier();
    uint own = LID / SHARERS, most = 0u;
    for (uint at = LID % SHARERS; at < p.width / 4; at += SHARERS) {
        uvec4 bits = floatBitsToUint(x4[min(t0 + own, p.rows - 1) * (p.width / 4) + at]) & 0x7fffffffu;
        most = max(most, max(max(bits[0], bits[1]), max(bits[2], bits[3])));
    }
    atomicMax(largest[own], most);
    for (uint chunk = 0; chunk < p.width; chunk += CHUNK) {
        uint columns = min(CHUNK, p.width - chunk);
        barrier();
        for (uint at = LID; at < TILE_T * (CHUNK / 8); at += GROUP) {
            uint token = at / (CHUNK / 8), octet = at % (CHUNK / 8);
            if (8 * octet >= columns) continue;
            uint from = min(t0 + token, p.rows - 1) * (p.width / 4) + chunk / 4 + 2 * octet;
            float factor = uintBitsToFloat(factor_of(largest[token]) << 23);
            [[unroll]] for (uint half_ = 0; half_ < 2; half_++) {
                vec4 v = x4[from + half_] * factor, bound = clamp(v, -MOST, MOST);
                vec4 cut = uintBitsToFloat(floatBitsToUint(bound) & 0xffffe000u), rest = v - cut;
                uint to = token * STRIDE + octet / 4 * 4 + 2 * half_;
                high[to][octet % 4] = packHalf2x16(cut.xy);
                high[to + 1][octet % 4] = packHalf2x16(cut.zw);
                low[to][octet % 4] = packHalf2x16(rest.xy);
                low[to + 1][octet % 4] = packHalf2x16(rest.zw);
            }
        }
        barrier();
        for (uint c = 0; c < columns; c += 64) {
            [[unroll]] for (uint r = 0; r < 2 * TILES; r++)
                [[unroll]] for (uint h = 0; h < 2; h++) words[r][h] = next[r][h];
            LOAD(min(chunk + c + 64, p.width - 64))
            [[unroll]] for (uint m = 0; m < TILES; m++)
                [[unroll]] for (uint h = 0; h < 2; h++) {
                    PRODUCT(words[2 * m][h], words[2 * m + 1][h], 0, c / 8 + 4 * h)
                    PRODUCT(words[2 * m][h], words[2 * m + 1][h], 2, c / 8 + 4 * h + 2)
                }
        }
    }
    [[unroll]] for (uint m = 0; m < TILES; m++)
        [[unroll]] for (uint i = 0; i < FRAGMENTS_T; i++)
            [[unroll]] for (uint e = 0; e < ELEMENTS; e++) {
                uint n = n0 + 16 * m + ROW(e), token = 16 * i + COLUMN(e);
                if (n >= p.outs || t0 + token >= p.rows) continue;
                float inverse = uintBitsToFloat((254u - factor_of(largest[token])) << 23);
                y[(t0 + token) * p.y_stride + p.y_first + n] = totals[m][i][e] * inverse;
            }
}

#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "prelude.glsl"
#include "dot.glsl"
// matmul_ternary_block of one row with activation scales (ABLOCK is not 0), formula as in matmul_ternary_block.comp.
// WIDTH is the number of columns. Each lane needs other columns of q, which would read a cache line each, so the
// workgroup copies q to shared memory: word i of block b is x[i * PITCH + b], at an odd distance so that a copied block
// goes to several banks. LANES invocations share a matrix row, a block of 128 columns each at a time; BATCH blocks are
// loaded at once. One workgroup per TILE_N matrix rows.
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 3) readonly buffer Scale { vec4 scale[]; };
layout(std430, binding = 4) readonly buffer Qsum { ivec4 qsum[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;
layout(std430, binding = 5) buffer Y { float y[]; };

const uint BLOCKS = WIDTH / 128, PITCH = BLOCKS + 1, ROWS_PER = TILE_N * LANES / GROUP;
const uint SPAN = BLOCK == 0 ? 128 : BLOCK, SCALES = (WIDTH + SPAN - 1) / SPAN;
shared uvec4 x[8 * PITCH];

// Loads BATCH blocks from `first` on; those past the end have the scale 0.
#define LOAD                                                                                                     \
    [[unroll]] for (uint d = 0; d < BATCH; d++)                                                                  \
        [[unroll]] for (uint r = 0; r < ROWS_PER; r++) {                                                         \
            uint b = min(first + d * LANES, BLOCKS - 1), n = min(n0 + r, p.outs - 1);                            \
            uint at = n * SCALES + 128 * b / SPAN;                                                               \
            words[d][r][0] = w[(n * BLOCKS + b) * 2];                                                            \
            words[d][r][1] = w[(n * BLOCKS + b) * 2 + 1];                                                        \
            units[d][r] = first + d * LANES < BLOCKS ? vec2(wscale[at], wscale[at + uint(BLOCK == 64)])  \
                                                      : vec2(0.0);                                               \
        }

void main() {
    uint lane = LID % LANES, n0 = gl_WorkGroupID.x * TILE_N + LID / LANES * ROWS_PER, own = n0 + lane;
    bool writes = lane < ROWS_PER && own < p.outs;
    uvec4 words[BATCH][ROWS_PER][2];
    vec2 units[BATCH][ROWS_PER];  // scales of columns 0..63 and 64..127 of a block
    uint first = lane;
    LOAD
    float before = ADD == 1 && writes ? y[p.y_first + own] : 0.0;
    for (uint i = LID; i < 8 * BLOCKS; i += GROUP) x[i % 8 * PITCH + i / 8] = q[i];
    barrier();
    float sums[ROWS_PER];
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++) sums[r] = 0.0;
    for (;;) {
        [[unroll]] for (uint d = 0; d < BATCH; d++) {
            uint b = min(first + d * LANES, BLOCKS - 1);
            vec4 scales = scale[b];
            ivec4 minus = qsum[b];
            [[unroll]] for (uint plane = 0; plane < 4; plane++) {
                uvec4 x0 = x[2 * plane * PITCH + b], x1 = x[(2 * plane + 1) * PITCH + b];
                uint mask = 0xc0c0c0c0u >> (2 * plane), shift = 6 - 2 * plane;
                float unit = scales[plane] * (1.0 / float(1 << shift));
                [[unroll]] for (uint r = 0; r < ROWS_PER; r++) {
                    int sum = -minus[plane] * (1 << shift);
                    sum = wide_dot16(words[d][r][0] & mask, x0, wide_dot16(words[d][r][1] & mask, x1, sum));
                    sums[r] += float(sum) * unit * (plane < 2 ? units[d][r].x : units[d][r].y);
                }
            }
        }
        first += BATCH * LANES;
        if (first >= BLOCKS + lane) break;
        LOAD
    }
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
        [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) sums[r] += subgroupShuffleXor(sums[r], d);
    float sum = sums[0];
    [[unroll]] for (uint r = 1; r < ROWS_PER; r++) sum = lane == r ? sums[r] : sum;
    if (writes) y[p.y_first + own] = before + sum;
}

#include "prelude.glsl"
#include "dot.glsl"
// rms_norm_quantize of x, repeated by every workgroup, then matmul_ternary_few of its codes: y[t, y_first + n] (+)=
// (sum_k code[n,k] q[t,k] - qsum[t]) * scale[t] * wscale[n], or with block scales (BLOCK, ABLOCK). The weights are
// prefetched while the row is normed.
// GLU: norm_matmul_glu, m[t,n] = act(gate) * up, with gate and up from rows n and outs + n of w.
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 0) readonly buffer X4 { vec4 x4[]; };
layout(std430, binding = 1) readonly buffer Gamma { float gamma[]; };
layout(std430, binding = 1) readonly buffer Gamma4 { vec4 gamma4[]; };
layout(std430, binding = 2) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 3) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 4) buffer Y { float y[]; };
#ifdef GLU
layout(push_constant) uniform Params { uint rows, columns, outs, width; float eps; } p;
#include "glu.glsl"
const uint MATRICES = 2;
#else
layout(push_constant) uniform Params { uint rows, columns, outs, width, y_stride, y_first; float eps; } p;
const uint MATRICES = 1;
#endif

const uint CHUNKS = WIDTH / 64;  // 16 bytes of a weight row each
const uint PER = (CHUNKS + LANES - 1) / LANES, ROWS_PER = TILE_N * LANES / GROUP, MINE = (ROWS_PER + LANES - 1) / LANES;
const uint SCALED = BLOCK == 0 ? 1 : PER;  // pieces with their own scales

float raw(uint row, uint column) { return x[row * p.columns + column]; }
vec4 raw4(uint row, uint word) { return x4[row * (p.columns / 4) + word]; }
#define MOST_WIDTH WIDTH
#include "blocks.glsl"
#include "codes_by_plane.glsl"
#include "quantize.glsl"

void main() {
    uint lane = LID % LANES, n0 = gl_WorkGroupID.x * TILE_N + LID / LANES * ROWS_PER, row = gl_WorkGroupID.y;
    vec4 values[ROW_WORDS], gain[ROW_WORDS];
    load_row(row, p.columns, values, gain);
    uvec4 packed[MATRICES][ROWS_PER][PER];
    vec2 units[MATRICES][ROWS_PER][SCALED];
    float factor[MATRICES][MINE], old[MINE];  // loaded early for the end: lane r % LANES stores row r
    [[unroll]] for (uint m = 0; m < MATRICES; m++) {
        [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
            [[unroll]] for (uint i = 0; i < PER; i++) {
                uint c = lane + i * LANES;
                bool used = c < CHUNKS && n0 + r < p.outs;
                packed[m][r][i] = used ? w[(m * p.outs + n0 + r) * CHUNKS + c] : uvec4(0);
                if (BLOCK != 0) units[m][r][i % SCALED] = used ? UNITS(wscale, m * p.outs + n0 + r, c, WIDTH) : vec2(0.0);
            }
        [[unroll]] for (uint i = 0; i < MINE; i++) {
            uint n = n0 + lane + i * LANES;
            bool used = lane + i * LANES < ROWS_PER && n < p.outs;
            factor[m][i] = used && BLOCK == 0 ? wscale[m * p.outs + n] : 0.0;
#ifndef GLU
            old[i] = ADD == 1 && used ? y[row * p.y_stride + p.y_first + n] : 0.0;
#endif
        }
    }
    Quantized made = codes_of(values, gain, NORM, p.columns, WIDTH, p.eps);
    int acc[MATRICES][ROWS_PER][4];
    float sums[MATRICES][ROWS_PER];
    [[unroll]] for (uint m = 0; m < MATRICES; m++)
        [[unroll]] for (uint r = 0; r < ROWS_PER; r++) {
            sums[m][r] = 0.0;
            [[unroll]] for (uint s = 0; s < 4; s++) acc[m][r][s] = 0;
        }
    [[unroll]] for (uint i = 0; i < PER; i++) {
        uint c = min(lane + i * LANES, CHUNKS - 1);  // past the end, codes are 0, and so are their scales
        [[unroll]] for (uint s = 0; s < 4; s++) {
            uvec4 acts = q_shared[s * PLANE + c];
            [[unroll]] for (uint m = 0; m < MATRICES; m++)
                [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
                    acc[m][r][s] = wide_dot16(packed[m][r][i] & (0xc0c0c0c0u >> (2 * s)), acts, acc[m][r][s]);
        }
        if (BLOCK == 0) continue;
        vec4 scales = act_scales[c / 2 % BLOCKS], halves = act_halves[c / 2 % BLOCKS];
        [[unroll]] for (uint m = 0; m < MATRICES; m++)
            [[unroll]] for (uint r = 0; r < ROWS_PER; r++) {
                ivec4 dots = ivec4(acc[m][r][0], acc[m][r][1], acc[m][r][2], acc[m][r][3]);
                sums[m][r] += of_chunk(dots, scales, halves, units[m][r][i % SCALED]);
                [[unroll]] for (uint s = 0; s < 4; s++) acc[m][r][s] = 0;
            }
    }
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++) {
        float value[MATRICES];
        [[unroll]] for (uint m = 0; m < MATRICES; m++) {
            if (BLOCK == 0) {
                int sum = (acc[m][r][0] >> 6) + (acc[m][r][1] >> 4) + (acc[m][r][2] >> 2) + acc[m][r][3];
                [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) sum += subgroupShuffleXor(sum, d);
                value[m] = float(sum - made.sum) * made.scale * factor[m][r / LANES];
            } else {
                value[m] = sums[m][r];
                [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) value[m] += subgroupShuffleXor(value[m], d);
            }
        }
        if (lane != r % LANES || n0 + r >= p.outs) continue;
#ifdef GLU
        y[row * p.outs + n0 + r] = glu(value[0], value[1]);
#else
        y[row * p.y_stride + p.y_first + n0 + r] = ADD == 1 ? old[r / LANES] + value[0] : value[0];
#endif
    }
}

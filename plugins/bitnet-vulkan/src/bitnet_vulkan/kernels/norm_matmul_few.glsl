#include "prelude.glsl"
#include "dot.glsl"
// norm_matmul of two to ROOM rows: every workgroup norms and quantizes all of them into shared memory, ROW_SHARE invocations a row, so
// that sums have the same order whatever the number of rows; then LANES neighbours share a row of w, BATCH rows at a time, and unpack
// each weight once for all rows of x. The first weights are prefetched while the rows are normed.
// GLU: norm_matmul_glu, of rows n and outs + n of w.
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
#include "blocks.glsl"
#include "codes_of_rows.glsl"

const uint CHUNKS = WIDTH / 64;  // 16 bytes of a weight row each
const uint PER = (CHUNKS + LANES - 1) / LANES, SLOTS = GROUP / LANES, ROWS_PER = TILE_N / SLOTS;
const uint MINE = MATRICES * BATCH;           // matrix rows that a lane has at once
const uint SCALED = BLOCK == 0 ? 1 : PER;     // pieces with scales of their own
const int LIFT = 0x4b400000;                  // the bits of LIFTED: an integer added to them is one added to that number
const float LIFTED = 12582912.0;

void main() {
    uint lane = LID % LANES, n0 = gl_WorkGroupID.x * TILE_N + LID / LANES * ROWS_PER;
    [[dont_unroll]] for (uint pass = 0; pass < ROWS_PER; pass += BATCH) {
        uvec4 packed[MINE][PER];
        vec2 units[MINE][SCALED];
        [[unroll]] for (uint j = 0; j < MINE; j++) {
            uint r = pass + j % BATCH, n = j / BATCH * p.outs + n0 + r;
            [[unroll]] for (uint i = 0; i < PER; i++) {
                uint c = lane + i * LANES;
                bool used = c < CHUNKS && r < ROWS_PER && n0 + r < p.outs;
                packed[j][i] = used ? w[n * CHUNKS + c] : uvec4(0);
                if (BLOCK != 0) units[j][i % SCALED] = used ? UNITS(wscale, n, c, WIDTH) : vec2(0.0);
            }
        }
        if (pass == 0) codes_of_rows(p.rows, p.columns, p.eps);
        int acc[MINE][ROOM];
        float sums[MINE][ROOM];
        [[unroll]] for (uint j = 0; j < MINE; j++)
            [[unroll]] for (uint t = 0; t < ROOM; t++) {
                acc[j][t] = 0;
                sums[j][t] = 0.0;
            }
        [[unroll]] for (uint i = 0; i < PER; i++) {
            uint c = min(lane + i * LANES, CHUNKS - 1);  // past the end, codes are 0, and so are their scales
            [[unroll]] for (uint s = 0; s < 4; s++) {
                uvec4 codes[MINE];
                [[unroll]] for (uint j = 0; j < MINE; j++)
                    codes[j] = BLOCK == 0 ? (packed[j][i] >> (6 - 2 * s)) & 0x03030303u : packed[j][i] & (0xc0c0c0c0u >> (2 * s));
                [[unroll]] for (uint t = 0; t < ROOM; t++) {
                    uvec4 acts = q_shared[t * ROW_CODES + s * PLANE + c];
                    if (BLOCK == 0) {
                        [[unroll]] for (uint j = 0; j < MINE; j++) acc[j][t] = dot16(codes[j], acts, acc[j][t]);
                        continue;
                    }
                    float scale = act_scales[t * BLOCKS + c / 2 % BLOCKS][s], half_sum = act_halves[t * BLOCKS + c / 2 % BLOCKS][s];
                    [[unroll]] for (uint j = 0; j < MINE; j++) {
                        float exact = intBitsToFloat(wide_dot16(codes[j], acts, LIFT)) - LIFTED;
                        sums[j][t] = fma(fma(exact, scale, -half_sum), units[j][i % SCALED][s / 2], sums[j][t]);
                    }
                }
            }
        }
        [[unroll]] for (uint j = 0; j < BATCH; j++)
            [[unroll]] for (uint t = 0; t < ROOM; t++) {
                float value[MATRICES];
                uint n = n0 + pass + j;
                [[unroll]] for (uint m = 0; m < MATRICES; m++) {
                    if (BLOCK == 0) {
                        int sum = acc[m * BATCH + j][t];
                        [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) sum += subgroupShuffleXor(sum, d);
                        value[m] = float(sum - row_sums[t]) * row_scales[t];
                    } else {
                        value[m] = sums[m * BATCH + j][t];
                        [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) value[m] += subgroupShuffleXor(value[m], d);
                    }
                }
                if (lane != (j * ROOM + t) % LANES || pass + j >= ROWS_PER || n >= p.outs || t >= p.rows) continue;
                if (BLOCK == 0)
                    [[unroll]] for (uint m = 0; m < MATRICES; m++) value[m] *= wscale[m * p.outs + n];
#ifdef GLU
                y[t * p.outs + n] = glu(value[0], value[1]);
#else
                uint at = t * p.y_stride + p.y_first + n;
                y[at] = ADD == 1 ? y[at] + value[0] : value[0];
#endif
            }
    }
}

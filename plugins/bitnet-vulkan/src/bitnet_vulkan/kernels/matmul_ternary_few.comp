#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "prelude.glsl"
#include "dot.glsl"
// matmul_ternary for few rows: y[t, y_first + n] (+)= (sum_k code[n,k] q[t,k] - qsum[t]) * scale[t] * wscale[n]. LANES
// neighbours share ROWS_PER rows of w, and issue all loads of weights before they use the first. Codes are masked, not
// shifted: each plane has its own sum, a multiple of 64, 16, 4 or 1.
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };
layout(std430, binding = 4) readonly buffer Qsum { int qsum[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;
layout(std430, binding = 5) buffer Y { float y[]; };

const uint CHUNKS = WIDTH / 64;  // 16 bytes of a weight row each
const uint PER = (CHUNKS + LANES - 1) / LANES, ROWS_PER = TILE_N * LANES / GROUP;


void main() {
    uint lane = LID % LANES, n0 = gl_WorkGroupID.x * TILE_N + LID / LANES * ROWS_PER, t0 = gl_WorkGroupID.y * TILE_T;
    uvec4 packed[ROWS_PER][PER];
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
        [[unroll]] for (uint i = 0; i < PER; i++) {
            uint c = lane + i * LANES;
            packed[r][i] = c < CHUNKS && n0 + r < p.outs ? w[(n0 + r) * CHUNKS + c] : uvec4(0);
        }
    // Loaded early for the end; lane `(r * TILE_T + t) % LANES` stores output `r * TILE_T + t`.
    const uint MINE = (ROWS_PER * TILE_T + LANES - 1) / LANES;
    float factor[MINE], old[MINE];
    [[unroll]] for (uint i = 0; i < MINE; i++) {
        uint which = lane + i * LANES, n = n0 + which / TILE_T, token = t0 + which % TILE_T;
        bool used = which < ROWS_PER * TILE_T && n < p.outs && token < p.rows;
        factor[i] = used ? wscale[n] : 0.0;
        old[i] = ADD == 1 && used ? y[token * p.y_stride + p.y_first + n] : 0.0;
    }
    int acc[ROWS_PER][TILE_T][4];
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
        [[unroll]] for (uint t = 0; t < TILE_T; t++)
            [[unroll]] for (uint s = 0; s < 4; s++) acc[r][t][s] = 0;
    [[unroll]] for (uint i = 0; i < PER; i++) {
        uint c = min(lane + i * LANES, CHUNKS - 1), column = (c >> 1) * 8 + (c & 1u);  // past the end, codes are 0
        [[unroll]] for (uint t = 0; t < TILE_T; t++) {
            if (t0 + t >= p.rows) break;
            [[unroll]] for (uint s = 0; s < 4; s++) {
                uvec4 acts = q[(t0 + t) * (WIDTH / 16) + column + 2 * s];
                [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
                    acc[r][t][s] = wide_dot16(packed[r][i] & (0xc0c0c0c0u >> (2 * s)), acts, acc[r][t][s]);
            }
        }
    }
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
        [[unroll]] for (uint t = 0; t < TILE_T; t++) {
            int sum = (acc[r][t][0] >> 6) + (acc[r][t][1] >> 4) + (acc[r][t][2] >> 2) + acc[r][t][3];
            [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) sum += subgroupShuffleXor(sum, d);
            uint n = n0 + r, token = t0 + t, which = r * TILE_T + t;
            if (lane != which % LANES || n >= p.outs || token >= p.rows) continue;
            float value = float(sum - qsum[token]) * scale[token] * factor[which / LANES];
            y[token * p.y_stride + p.y_first + n] = ADD == 1 ? old[which / LANES] + value : value;
        }
}

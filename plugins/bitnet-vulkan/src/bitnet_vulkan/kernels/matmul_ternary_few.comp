#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "prelude.glsl"
#include "dot.glsl"
// matmul_ternary for few rows: LANES neighbours share ROWS_PER rows of w, and have all their weights on the way before they
// use the first. The codes are masked, not shifted: each plane has its own sum, a multiple of 64, 16, 4 or 1.
// FUSED: q is made here, by every workgroup for itself, out of x (1: rms_norm_quantize) or gate_up (2: glu_norm_quantize);
// there is one row, and the first workgroup of the first matrix (p.keep) stores q, scale and qsum.
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
#ifdef FUSED
layout(std430, binding = 2) writeonly buffer Q { uint q[]; };
layout(std430, binding = 3) writeonly buffer Scale { float scale[]; };
layout(std430, binding = 4) writeonly buffer Qsum { int qsum[]; };
layout(std430, binding = 6) readonly buffer X { float x[]; };
layout(std430, binding = 6) readonly buffer X4 { vec4 x4[]; };
layout(std430, binding = 7) readonly buffer Gamma { float gamma[]; };
layout(std430, binding = 7) readonly buffer Gamma4 { vec4 gamma4[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first, columns; float eps; uint keep; } p;
#else
layout(std430, binding = 2) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };
layout(std430, binding = 4) readonly buffer Qsum { int qsum[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;
#endif
layout(std430, binding = 5) buffer Y { float y[]; };

const uint CHUNKS = WIDTH / 64;  // 16 bytes of a weight row each
const uint PER = (CHUNKS + LANES - 1) / LANES, ROWS_PER = TILE_N * LANES / GROUP;

#ifdef FUSED
shared uvec4 q_shared[WIDTH / 16];
#if FUSED == 1
float raw(uint row, uint column) { return x[column]; }
vec4 raw4(uint row, uint word) { return x4[word]; }
#else
#include "glu.glsl"
float raw(uint row, uint column) { return glu(x[column], x[p.columns + column]); }
vec4 raw4(uint row, uint word) { return glu4(x4[word], x4[p.columns / 4 + word]); }
#endif
void put(uint row, uint word, uint codes) {
    q_shared[word / 4][word % 4] = codes;
    if (p.keep == 1 && gl_WorkGroupID.x == 0) q[word] = codes;
}
#include "quantize.glsl"
#endif

void main() {
    uint lane = LID % LANES, n0 = gl_WorkGroupID.x * TILE_N + LID / LANES * ROWS_PER, t0 = gl_WorkGroupID.y * TILE_T;
    uvec4 packed[ROWS_PER][PER];
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
        [[unroll]] for (uint i = 0; i < PER; i++) {
            uint c = lane + i * LANES;
            packed[r][i] = c < CHUNKS && n0 + r < p.outs ? w[(n0 + r) * CHUNKS + c] : uvec4(0);
        }
#ifdef FUSED
    Quantized made = quantize_row(0, p.columns, p.eps);
    if (p.keep == 1 && gl_WorkGroupID.x == 0 && LID == 0) {
        scale[0] = made.scale;
        qsum[0] = made.sum;
    }
#endif
    int acc[ROWS_PER][TILE_T][4];
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
        [[unroll]] for (uint t = 0; t < TILE_T; t++)
            [[unroll]] for (uint s = 0; s < 4; s++) acc[r][t][s] = 0;
    [[unroll]] for (uint i = 0; i < PER; i++) {
        uint c = min(lane + i * LANES, CHUNKS - 1), column = (c >> 1) * 8 + (c & 1u);  // past the end, codes are 0
        [[unroll]] for (uint t = 0; t < TILE_T; t++) {
            if (t0 + t >= p.rows) break;
            [[unroll]] for (uint s = 0; s < 4; s++) {
#ifdef FUSED
                uvec4 acts = q_shared[column + 2 * s];
#else
                uvec4 acts = q[(t0 + t) * (WIDTH / 16) + column + 2 * s];
#endif
                [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
                    acc[r][t][s] = wide_dot16(packed[r][i] & (0xc0c0c0c0u >> (2 * s)), acts, acc[r][t][s]);
            }
        }
    }
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
        [[unroll]] for (uint t = 0; t < TILE_T; t++) {
            int sum = (acc[r][t][0] >> 6) + (acc[r][t][1] >> 4) + (acc[r][t][2] >> 2) + acc[r][t][3];
            [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) sum += subgroupShuffleXor(sum, d);
            uint n = n0 + r, token = t0 + t;
            if (lane != (r * TILE_T + t) % LANES || n >= p.outs || token >= p.rows) continue;
#ifdef FUSED
            float value = float(sum - made.sum) * made.scale * wscale[n];
#else
            float value = float(sum - qsum[token]) * scale[token] * wscale[n];
#endif
            uint at = token * p.y_stride + p.y_first + n;
            y[at] = ADD == 1 ? y[at] + value : value;
        }
}

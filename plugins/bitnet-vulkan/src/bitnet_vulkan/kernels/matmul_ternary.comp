#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "prelude.glsl"
#include "dot.glsl"
// y[t, y_first + n] (+)= (sum_k code[n,k] q[t,k] - qsum[t]) * scale[t] * wscale[n]; w[N, width/4] in I2_S 128-blocks.
// A workgroup computes TILE_N x TILE_T outputs; GROUP / TILE_N lanes share a weight row, 64 weights (16 bytes) at a
// time.
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };
layout(std430, binding = 4) readonly buffer Qsum { int qsum[]; };
layout(std430, binding = 5) buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

const uint SHARE = GROUP / TILE_N;
shared int partial[GROUP * TILE_T];

void main() {
    uint lane = LID % SHARE, n = gl_WorkGroupID.x * TILE_N + LID / SHARE, first = gl_WorkGroupID.y * TILE_T;
    uint chunks = p.width / 64, tokens = min(TILE_T, p.rows - first);
    int acc[TILE_T];
    for (uint t = 0; t < TILE_T; t++) acc[t] = 0;
    if (n < p.outs) {
        for (uint c = lane; c < chunks; c += SHARE) {
            uvec4 packed = w[n * chunks + c];
            uint column = (c >> 1) * 8 + (c & 1u);  // words of 16 columns: block, then half of a plane
            for (uint s = 0; s < 4; s++) {
                uvec4 codes = (packed >> (6 - 2 * s)) & 0x03030303u;
                for (uint t = 0; t < TILE_T; t++)
                    if (t < tokens) acc[t] = dot16(codes, q[(first + t) * (p.width / 16) + column + 2 * s], acc[t]);
            }
        }
    }
    for (uint t = 0; t < TILE_T; t++) partial[t * GROUP + LID] = acc[t];
    barrier();
    for (uint s = SHARE / 2; s > 0; s >>= 1) {
        if (lane < s)
            for (uint t = 0; t < TILE_T; t++) partial[t * GROUP + LID] += partial[t * GROUP + LID + s];
        barrier();
    }
    if (n >= p.outs) return;
    for (uint t = lane; t < tokens; t += SHARE) {
        int dot = partial[t * GROUP + LID - lane] - qsum[first + t];
        float value = float(dot) * scale[first + t] * wscale[n];
        uint at = (first + t) * p.y_stride + p.y_first + n;
        y[at] = ADD == 1 ? y[at] + value : value;
    }
}

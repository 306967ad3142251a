#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "prelude.glsl"
#include "dot.glsl"
// y[t, y_first + n] (+)= scale[t] * sum_b wscale[n,b] * (sum over block b of (code[n,k] - 1) q[t,k]), with blocks of
// BLOCK columns; with ABLOCK, scale[t,a] of each 32 columns within the sum.
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
shared float partial[GROUP * TILE_T];

void main() {
    uint lane = LID % SHARE, n = gl_WorkGroupID.x * TILE_N + LID / SHARE, first = gl_WorkGroupID.y * TILE_T;
    uint chunks = p.width / 64, tokens = min(TILE_T, p.rows - first), scales = (p.width + BLOCK - 1) / BLOCK;
    float acc[TILE_T];
    for (uint t = 0; t < TILE_T; t++) acc[t] = 0.0;
    if (n < p.outs) {
        for (uint c = lane; c < chunks; c += SHARE) {
            uvec4 packed = w[n * chunks + c];
            uint column = (c >> 1) * 8 + (c & 1u);
            for (uint s = 0; s < 4; s++) {
                uvec4 codes = (packed >> (6 - 2 * s)) & 0x03030303u;
                float weight = wscale[n * scales + ((c >> 1) * 128 + 32 * s) / BLOCK];
                for (uint t = 0; t < TILE_T; t++) {
                    if (t >= tokens) continue;
                    uvec4 acts = q[(first + t) * (p.width / 16) + column + 2 * s];
                    int dot = dot16(codes, acts, 0);
                    uint a = (first + t) * (p.width / 32) + (c >> 1) * 4 + s;
                    if (ABLOCK == 0) acc[t] += weight * float(dot - dot16(uvec4(0x01010101u), acts, 0));
                    else acc[t] += weight * scale[a] * float(dot - ((c & 1u) == 0 ? qsum[a] : 0));  // once for two halves
                }
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
        float value = partial[t * GROUP + LID - lane] * (ABLOCK == 0 ? scale[first + t] : 1.0);
        uint at = (first + t) * p.y_stride + p.y_first + n;
        y[at] = ADD == 1 ? y[at] + value : value;
    }
}

#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// y[l, y_first + n] = sum_k x[l,k] w[n,k], f32 sums; w[N, width] of DTYPE.
// A workgroup computes TILE_N x TILE_T outputs; GROUP / TILE_N lanes share a row of w.
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) readonly buffer W { uint w[]; };
layout(std430, binding = 1) readonly buffer W4 { uvec4 w4[]; };
layout(std430, binding = 2) buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

uint table_word(uint i) { return w[i]; }
#include "dense.glsl"

const uint SHARE = GROUP / TILE_N;
shared float partial[GROUP * TILE_T];

void main() {
    uint lane = LID % SHARE, n = gl_WorkGroupID.x * TILE_N + LID / SHARE, first = gl_WorkGroupID.y * TILE_T;
    uint tokens = min(TILE_T, p.rows - first);
    float acc[TILE_T];
    for (uint t = 0; t < TILE_T; t++) acc[t] = 0.0;
    if (n < p.outs && DTYPE == 1 && p.width % 8 == 0) {  // eight f16 at a time
        for (uint c = lane; c < p.width / 8; c += SHARE) {
            uvec4 packed = w4[n * (p.width / 8) + c];
            for (uint i = 0; i < 4; i++) {
                vec2 pair = unpackHalf2x16(packed[i]);
                for (uint t = 0; t < TILE_T; t++) {
                    if (t >= tokens) continue;
                    uint at = (first + t) * p.width + 8 * c + 2 * i;
                    acc[t] += pair.x * x[at] + pair.y * x[at + 1];
                }
            }
        }
    } else if (n < p.outs) {
        for (uint k = lane; k < p.width; k += SHARE) {
            float weight = table_element(n * p.width + k);
            for (uint t = 0; t < TILE_T; t++)
                if (t < tokens) acc[t] += weight * x[(first + t) * p.width + k];
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
    for (uint t = lane; t < tokens; t += SHARE)
        y[(first + t) * p.y_stride + p.y_first + n] = partial[t * GROUP + LID - lane];
}

#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// matmul_dense for few rows and f16 weights: y[l, y_first + n] = sum_k x[l,k] w[n,k]. LANES neighbours share a row of
// w, BATCH rows at a time; if there is one row of x, they keep their part of it in registers.
layout(std430, binding = 0) readonly buffer X { vec4 x[]; };
layout(std430, binding = 1) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 2) buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

const uint CHUNKS = WIDTH / 8, PER = (CHUNKS + LANES - 1) / LANES, ROWS_PER = TILE_N * LANES / GROUP;
const uint KEPT = TILE_T == 1 ? PER : 1;

float dot8(uvec4 packed, vec4 a, vec4 b, float sum) {
    vec2 v = unpackHalf2x16(packed.x);
    sum += v.x * a.x + v.y * a.y;
    v = unpackHalf2x16(packed.y);
    sum += v.x * a.z + v.y * a.w;
    v = unpackHalf2x16(packed.z);
    sum += v.x * b.x + v.y * b.y;
    v = unpackHalf2x16(packed.w);
    return sum + (v.x * b.z + v.y * b.w);
}

void main() {
    uint lane = LID % LANES, first = gl_WorkGroupID.x * TILE_N + LID / LANES * ROWS_PER, t0 = gl_WorkGroupID.y * TILE_T;
    vec4 kept_a[KEPT], kept_b[KEPT];
    if (TILE_T == 1) {
        [[unroll]] for (uint i = 0; i < KEPT; i++) {
            uint c = lane + i * LANES;
            kept_a[i] = c < CHUNKS ? x[t0 * (WIDTH / 4) + 2 * c] : vec4(0.0);
            kept_b[i] = c < CHUNKS ? x[t0 * (WIDTH / 4) + 2 * c + 1] : vec4(0.0);
        }
    }
    for (uint block = 0; block < ROWS_PER; block += BATCH) {
        uint n0 = first + block;
        if (n0 >= p.outs) return;
        float acc[BATCH][TILE_T];
        [[unroll]] for (uint r = 0; r < BATCH; r++)
            [[unroll]] for (uint t = 0; t < TILE_T; t++) acc[r][t] = 0.0;
        [[unroll]] for (uint i = 0; i < PER; i++) {
            uint c = min(lane + i * LANES, CHUNKS - 1);
            uvec4 packed[BATCH];
            [[unroll]] for (uint r = 0; r < BATCH; r++)
                packed[r] = lane + i * LANES < CHUNKS ? w[min(n0 + r, p.outs - 1) * CHUNKS + c] : uvec4(0);
            [[unroll]] for (uint t = 0; t < TILE_T; t++) {
                uint at = min(t0 + t, p.rows - 1) * (WIDTH / 4) + 2 * c;
                vec4 a = TILE_T == 1 ? kept_a[i % KEPT] : x[at], b = TILE_T == 1 ? kept_b[i % KEPT] : x[at + 1];
                [[unroll]] for (uint r = 0; r < BATCH; r++) acc[r][t] = dot8(packed[r], a, b, acc[r][t]);
            }
        }
        [[unroll]] for (uint r = 0; r < BATCH; r++)
            [[unroll]] for (uint t = 0; t < TILE_T; t++) {
                float sum = acc[r][t];
                [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) sum += subgroupShuffleXor(sum, d);
                if (lane == (r * TILE_T + t) % LANES && n0 + r < p.outs && t0 + t < p.rows)
                    y[(t0 + t) * p.y_stride + p.y_first + n0 + r] = sum;
            }
    }
}

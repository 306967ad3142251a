#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "prelude.glsl"
#include "dot.glsl"
// matmul_ternary for many rows: y[t, y_first + n] (+)= (sum_k code[n,k] q[t,k] - qsum[t]) * scale[t] * wscale[n]. A
// workgroup of 256 computes 64 x 64 outputs, each invocation 4 x 4. Per step of 128 columns the tiles of weights (2
// KiB) and activations (8 KiB) pass through shared memory, so each is read once per tile.
layout(std430, binding = 0) readonly buffer W { uint w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uint q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };
layout(std430, binding = 4) readonly buffer Qsum { int qsum[]; };
layout(std430, binding = 5) buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;

const uint SIDE = 64;
shared uint w_tile[8 * SIDE];   // [word of the 32-byte block][row]: neighbours read neighbours
shared uint q_tile[32 * SIDE];  // [word of the 128 columns][token]

void main() {
    uint tx = LID % 16, ty = LID / 16;
    uint n0 = gl_WorkGroupID.x * SIDE, t0 = gl_WorkGroupID.y * SIDE, blocks = p.width / 128;
    int acc[4][4];
    for (uint i = 0; i < 4; i++)
        for (uint j = 0; j < 4; j++) acc[i][j] = 0;
    for (uint b = 0; b < blocks; b++) {
        barrier();
        for (uint i = LID; i < 8 * SIDE; i += 256) {
            uint row = i / 8, word = i % 8;
            w_tile[word * SIDE + row] = n0 + row < p.outs ? w[((n0 + row) * blocks + b) * 8 + word] : 0;
        }
        for (uint i = LID; i < 32 * SIDE; i += 256) {
            uint token = i / 32, word = i % 32;
            q_tile[word * SIDE + token] = t0 + token < p.rows ? q[((t0 + token) * blocks + b) * 32 + word] : 0;
        }
        barrier();
        for (uint word = 0; word < 8; word++) {
            for (uint s = 0; s < 4; s++) {
                uint codes[4], acts[4];
                for (uint i = 0; i < 4; i++) {
                    codes[i] = (w_tile[word * SIDE + tx + 16 * i] >> (6 - 2 * s)) & 0x03030303u;
                    acts[i] = q_tile[(s * 8 + word) * SIDE + ty + 16 * i];
                }
                for (uint i = 0; i < 4; i++)
                    for (uint j = 0; j < 4; j++) acc[i][j] = dot4(codes[i], acts[j], acc[i][j]);
            }
        }
    }
    for (uint i = 0; i < 4; i++) {
        uint n = n0 + tx + 16 * i;
        for (uint j = 0; j < 4; j++) {
            uint t = t0 + ty + 16 * j;
            if (n >= p.outs || t >= p.rows) continue;
            float value = float(acc[i][j] - qsum[t]) * scale[t] * wscale[n];
            uint at = t * p.y_stride + p.y_first + n;
            y[at] = ADD == 1 ? y[at] + value : value;
        }
    }
}

#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "prelude.glsl"
#include "dot.glsl"
#include "blocks.glsl"
// matmul_ternary_block for few rows, as matmul_ternary_few.comp, with scales for each chunk of 64 columns. Formula as
// in matmul_ternary_block.comp.
layout(std430, binding = 0) readonly buffer W { uvec4 w[]; };
layout(std430, binding = 1) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = 2) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 3) readonly buffer Scale { float scale[]; };
layout(std430, binding = 3) readonly buffer Scale4 { vec4 scale4[]; };
layout(std430, binding = 4) readonly buffer Qsum4 { ivec4 qsum4[]; };
layout(push_constant) uniform Params { uint rows, outs, width, y_stride, y_first; } p;
layout(std430, binding = 5) buffer Y { float y[]; };

const uint CHUNKS = WIDTH / 64;  // 16 bytes of a weight row each
const uint PER = (CHUNKS + LANES - 1) / LANES, ROWS_PER = TILE_N * LANES / GROUP;


void main() {
    uint lane = LID % LANES, n0 = gl_WorkGroupID.x * TILE_N + LID / LANES * ROWS_PER, t0 = gl_WorkGroupID.y * TILE_T;
    uvec4 packed[ROWS_PER][PER];
    vec2 units[ROWS_PER][PER];
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
        [[unroll]] for (uint i = 0; i < PER; i++) {
            uint c = lane + i * LANES;
            bool used = c < CHUNKS && n0 + r < p.outs;
            packed[r][i] = used ? w[(n0 + r) * CHUNKS + c] : uvec4(0);
            units[r][i] = used ? UNITS(wscale, n0 + r, c, WIDTH) : vec2(0.0);
        }
    float sums[ROWS_PER][TILE_T];
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
        [[unroll]] for (uint t = 0; t < TILE_T; t++) sums[r][t] = 0.0;
    [[unroll]] for (uint i = 0; i < PER; i++) {
        uint c = min(lane + i * LANES, CHUNKS - 1), column = (c >> 1) * 8 + (c & 1u);  // past the end, scales are 0
        [[unroll]] for (uint t = 0; t < TILE_T; t++) {
            if (t0 + t >= p.rows) break;
            int dots[ROWS_PER][4];
            ivec4 total;
            [[unroll]] for (uint s = 0; s < 4; s++) {
                uvec4 acts = q[(t0 + t) * (WIDTH / 16) + column + 2 * s];
                if (ABLOCK == 0) total[s] = dot16(uvec4(0x01010101u), acts, 0);
                [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
                    dots[r][s] = wide_dot16(packed[r][i] & (0xc0c0c0c0u >> (2 * s)), acts, 0);
            }
            vec4 scales = PLANES, halves = vec4(total);
            if (ABLOCK != 0) {
                vec4 own = scale4[(t0 + t) * (WIDTH / 128) + c / 2];
                scales = own * PLANES;
                halves = own * 0.5 * vec4(qsum4[(t0 + t) * (WIDTH / 128) + c / 2]);
            }
            [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
                sums[r][t] += of_chunk(ivec4(dots[r][0], dots[r][1], dots[r][2], dots[r][3]), scales, halves, units[r][i]);
        }
    }
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
        [[unroll]] for (uint t = 0; t < TILE_T; t++) {
            float value = sums[r][t];
            [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) value += subgroupShuffleXor(value, d);
            uint n = n0 + r, token = t0 + t;
            if (lane != (r * TILE_T + t) % LANES || n >= p.outs || token >= p.rows) continue;
            if (ABLOCK == 0) value *= scale[token];
            uint at = token * p.y_stride + p.y_first + n;
            y[at] = ADD == 1 ? y[at] + value : value;
        }
}

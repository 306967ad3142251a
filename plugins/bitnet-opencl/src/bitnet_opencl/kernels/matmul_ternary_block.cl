// y[t, y_first + n] (+)= scale[t] * sum_b wscale[n, b] * (sum over block b of (code[n, k] - 1) * q[t, k]), the inner sums
// exact. Scales hold for BLOCK columns: 64 (half a 128-block of w: planes 0, 1 and planes 2, 3), 128 or 256.
// w u8[outs, width / 4]; wscale f32[outs, ceil(width / BLOCK)]; q i8[rows, width]; scale f32[rows]; y f32[rows, y_stride].
// LANES work-items share a matrix row, a 128-block each at a time. Group: TILE_N matrix rows, TILE_T rows of q.
#define SETS (WG / LANES)
#define ROWS_PER_SET (TILE_N / SETS)
GROUP __kernel void matmul_ternary_block(IN(uchar, w), IN(float, wscale), IN(char, q), IN(float, scale), OUT(float, y),
                                         const uint rows, const uint outs, const uint width, const uint y_stride,
                                         const uint y_first) {
    AT_IN(uint, w);
    AT_IN(float, wscale);
    AT_IN(uint, q);
    AT_IN(float, scale);
    AT_OUT(float, y);
    __local float scratch[WG];
    const uint lid = get_local_id(0), lane = lid % LANES, blocks = width / 128;
    const uint n0 = get_group_id(0) * TILE_N + lid / LANES * ROWS_PER_SET, t0 = get_group_id(1) * TILE_T;
    for (uint r = 0; r < ROWS_PER_SET; ++r) {
        const uint n = min(n0 + r, outs - 1);
        __global const float *row_scale = wscale + (ulong)n * CEIL_DIV(width, BLOCK);
        for (uint j = 0; j < TILE_T; ++j) {
            const uint t = min(t0 + j, rows - 1);
            float sum = 0;
            for (uint b = lane; b < blocks; b += LANES) {
                __global const uint *words = w + ((ulong)n * blocks + b) * 8;
                __global const uint *x = q + ((ulong)t * blocks + b) * 32;
                int first = 0, second = 0;  // columns 0..63 and 64..127 of the block
                for (uint i = 0; i < 8; ++i) {
                    const uint word = words[i];
                    first = dot4(PLANE(word, 0), x[i], first) - dot4(0x01010101u, x[i], 0);
                    first = dot4(PLANE(word, 1), x[8 + i], first) - dot4(0x01010101u, x[8 + i], 0);
                    second = dot4(PLANE(word, 2), x[16 + i], second) - dot4(0x01010101u, x[16 + i], 0);
                    second = dot4(PLANE(word, 3), x[24 + i], second) - dot4(0x01010101u, x[24 + i], 0);
                }
#if BLOCK == 64
                sum += row_scale[2 * b] * (float)first + row_scale[2 * b + 1] * (float)second;
#else
                sum += row_scale[b / (BLOCK / 128)] * (float)(first + second);
#endif
            }
            sum = lanes_sum(sum, scratch, LANES);
            if (lane != 0 || n0 + r >= outs || t0 + j >= rows) continue;
            __global float *to = y + (ulong)t * y_stride + y_first + n;
#if ADD
            *to += sum * scale[t];
#else
            *to = sum * scale[t];
#endif
        }
    }
}

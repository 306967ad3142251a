// y[t, y_first + n] (+)= (sum_k code[n, k] * q[t, k] - qsum[t]) * scale[t] * wscale[n], the sum exact in int32.
// w u8[outs, width / 4] I2_S blocks; wscale f32[outs]; q i8[rows, width]; scale f32[rows]; qsum i32[rows]; y f32[rows,
// y_stride].
// Few rows: LANES work-items share a matrix row. Each loads 16 bytes (64 weights) at a time, 16 neighbouring bytes per
// lane, and reads q from the cache; DEPTH loads are in flight. width == WIDTH. Group: TILE_N matrix rows, TILE_T rows
// of q.
#define SETS (GROUP / LANES)
#define ROWS_PER_SET (TILE_N / SETS)
#define UNITS (WIDTH / 64)
#ifndef WIDTH
#define WIDTH width
#endif
KERNEL matmul_ternary(ARGUMENTS) {
    PARAMETERS
    AT_IN(uint4, w);
    AT_IN(float, wscale);
    AT_IN(char, q);
    AT_IN(float, scale);
    AT_IN(int, qsum);
    AT_OUT(float, y);
    __local int scratch[GROUP];
    const uint lid = get_local_id(0), lane = lid % LANES;
    const uint n0 = get_group_id(0) * TILE_N + lid / LANES * ROWS_PER_SET, t0 = get_group_id(1) * TILE_T;
    int acc[ROWS_PER_SET][TILE_T];
    __global const uint4 *weights[ROWS_PER_SET];
    UNROLL
    for (uint r = 0; r < ROWS_PER_SET; ++r) {
        weights[r] = w + (ulong)min(n0 + r, outs - 1) * UNITS;
        UNROLL
        for (uint t = 0; t < TILE_T; ++t) acc[r][t] = 0;
    }
    for (uint first = lane; first < UNITS; first += LANES * DEPTH) {
        uint4 word[DEPTH][ROWS_PER_SET];
        UNROLL
        for (uint d = 0; d < DEPTH; ++d)
            UNROLL
            for (uint r = 0; r < ROWS_PER_SET; ++r) word[d][r] = weights[r][min(first + d * LANES, (uint)UNITS - 1)];
        UNROLL
        for (uint d = 0; d < DEPTH; ++d) {
            const uint u = first + d * LANES;
            if (u >= UNITS) break;
            UNROLL
            for (uint t = 0; t < TILE_T; ++t) {
                // 16 bytes of w hold columns c..c+15 of each plane; planes are 32 columns apart.
                __global const uint4 *part =
                    (__global const uint4 *)(q + (ulong)min(t0 + t, rows - 1) * WIDTH + u / 2 * 128 + u % 2 * 16);
                UNROLL
                for (uint plane = 0; plane < 4; ++plane) {
                    const uint4 x = part[2 * plane];
                    UNROLL
                    for (uint r = 0; r < ROWS_PER_SET; ++r) {
                        const uint4 code = PLANE(word[d][r], plane);
                        acc[r][t] = dot4(code.x, x.x, acc[r][t]);
                        acc[r][t] = dot4(code.y, x.y, acc[r][t]);
                        acc[r][t] = dot4(code.z, x.z, acc[r][t]);
                        acc[r][t] = dot4(code.w, x.w, acc[r][t]);
                    }
                }
            }
        }
    }
    UNROLL
    for (uint r = 0; r < ROWS_PER_SET; ++r) {
        UNROLL
        for (uint t = 0; t < TILE_T; ++t) {
            const int sum = lanes_sum_int(acc[r][t], scratch, LANES);
            if (lane != 0 || n0 + r >= outs || t0 + t >= rows) continue;
            const float value = (float)(sum - qsum[t0 + t]) * scale[t0 + t] * wscale[n0 + r];
            __global float *to = y + (ulong)(t0 + t) * y_stride + y_first + n0 + r;
#if ADD
            *to += value;
#else
            *to = value;
#endif
        }
    }
}

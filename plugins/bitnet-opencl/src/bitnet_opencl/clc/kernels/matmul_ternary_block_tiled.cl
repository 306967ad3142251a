// matmul_ternary_block for many rows (prompts): TILE_N x TILE_T outputs per group, 4 x 4 per work-item, over one 128-block of
// columns at a time. Codes are unpacked once, to -1, 0, 1, into local memory and used for TILE_T rows. Shapes as in
// matmul_ternary_block.cl.
#define SIDE_N (TILE_N / 4)
#define SIDE_T (TILE_T / 4)
#define PITCH 33  // words of one 128-column row in local memory, plus one against bank conflicts
#define SPAN (ABLOCK ? 8 : BLOCK == 64 ? 16 : 32)  // words of columns that share both scales
KERNEL matmul_ternary_block_tiled(ARGUMENTS) {
    PARAMETERS
    AT_IN(uint, w);
    AT_IN(float, wscale);
    AT_IN(uint, q);
    AT_IN(float, scale);
    AT_IN(int, qsum);
    AT_OUT(float, y);
    __local uint codes[TILE_N * PITCH], columns[TILE_T * PITCH];
    const uint lid = get_local_id(0), n_lane = lid % SIDE_N, t_lane = lid / SIDE_N;
    const uint n0 = get_group_id(0) * TILE_N, t0 = get_group_id(1) * TILE_T;
    const uint blocks = width / 128;
    float sums[4][4];
    UNROLL
    for (uint i = 0; i < 4; ++i)
        UNROLL
        for (uint j = 0; j < 4; ++j) sums[i][j] = 0;
    for (uint b = 0; b < blocks; ++b) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = lid; i < TILE_N * 8; i += GROUP) {
            const uint word = w[((ulong)min(n0 + i / 8, outs - 1) * blocks + b) * 8 + i % 8];
            __local uint *to = codes + i / 8 * PITCH + i % 8;
            UNROLL
            for (uint plane = 0; plane < 4; ++plane) to[8 * plane] = SIGNED(PLANE(word, plane));
        }
        for (uint i = lid; i < TILE_T * 32; i += GROUP)
            columns[i / 32 * PITCH + i % 32] = q[((ulong)min(t0 + i / 32, rows - 1) * blocks + b) * 32 + i % 32];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint start = 0; start < 32; start += SPAN) {
            int acc[4][4];
            UNROLL
            for (uint i = 0; i < 4; ++i)
                UNROLL
                for (uint j = 0; j < 4; ++j) acc[i][j] = 0;
            for (uint k = start; k < start + SPAN; ++k) {
                uint code[4], x[4];
                UNROLL
                for (uint i = 0; i < 4; ++i) code[i] = codes[(n_lane + i * SIDE_N) * PITCH + k];
                UNROLL
                for (uint j = 0; j < 4; ++j) x[j] = columns[(t_lane + j * SIDE_T) * PITCH + k];
                UNROLL
                for (uint i = 0; i < 4; ++i)
                    UNROLL
                    for (uint j = 0; j < 4; ++j) acc[i][j] = dot4_signed(code[i], x[j], acc[i][j]);
            }
            float factor[4], own[4];
            UNROLL
            for (uint i = 0; i < 4; ++i) {
                const ulong n = min(n0 + n_lane + i * SIDE_N, outs - 1);
                factor[i] = wscale[n * CEIL_DIV(width, BLOCK) + (128 * b + 4 * start) / BLOCK];
            }
            UNROLL
            for (uint j = 0; j < 4; ++j) {
                const ulong t = min(t0 + t_lane + j * SIDE_T, rows - 1);
                own[j] = ABLOCK ? scale[(t * blocks + b) * 4 + start / 8] : 1.0f;
            }
            UNROLL
            for (uint i = 0; i < 4; ++i)
                UNROLL
                for (uint j = 0; j < 4; ++j) sums[i][j] = fma((float)acc[i][j] * own[j], factor[i], sums[i][j]);
        }
    }
    UNROLL
    for (uint j = 0; j < 4; ++j) {
        const uint t = t0 + t_lane + j * SIDE_T;
        if (t >= rows) break;
        UNROLL
        for (uint i = 0; i < 4; ++i) {
            const uint n = n0 + n_lane + i * SIDE_N;
            if (n >= outs) break;
            const float value = ABLOCK ? sums[i][j] : sums[i][j] * scale[t];
            __global float *to = y + (ulong)t * y_stride + y_first + n;
#if ADD
            *to += value;
#else
            *to = value;
#endif
        }
    }
}

// y[t, y_first + n] (+)= sum_b wscale[n, b] * (sum over block b of (code[n, k] - 1) * q[t, k]) * scale[t], with exact
// inner sums over blocks of BLOCK columns. If ABLOCK is not 0, activations have their own scales: sum_a wscale[n, 32 a
// / BLOCK] * scale[t, a] * (sum over the 32 columns of a).
// w u8[outs, width / 4]; wscale f32[outs, ceil(width / BLOCK)]; q i8[rows, width]; scale f32 and qsum i32 [rows] or
// [rows, width / 32]; y f32[rows, y_stride].
// Few rows: LANES work-items share a matrix row, a 128-block each at a time. Group: TILE_N matrix rows, TILE_T rows of
// q.
#define SETS (GROUP / LANES)
#define ROWS_PER_SET (TILE_N / SETS)

// Returns the sum over 32 columns of q, 16-byte aligned.
INLINE int sum_of(const uint4 *x) {
    const uint ones = 0x01010101u;
    int sum = 0;
    UNROLL
    for (uint i = 0; i < 2; ++i) sum = dot4(ones, x[i].x, dot4(ones, x[i].y, dot4(ones, x[i].z, dot4(ones, x[i].w, sum))));
    return sum;
}

KERNEL matmul_ternary_block(ARGUMENTS) {
    PARAMETERS
    AT_IN(uint4, w);
    AT_IN(float, wscale);
    AT_IN(uint4, q);
    AT_IN(float, scale);
    AT_IN(int, qsum);
    AT_OUT(float, y);
    __local float scratch[GROUP];
    const uint lid = get_local_id(0), lane = lid % LANES, blocks = width / 128;
    const uint n0 = get_group_id(0) * TILE_N + lid / LANES * ROWS_PER_SET, t0 = get_group_id(1) * TILE_T;
    float sums[ROWS_PER_SET][TILE_T];
    UNROLL
    for (uint r = 0; r < ROWS_PER_SET; ++r)
        UNROLL
        for (uint j = 0; j < TILE_T; ++j) sums[r][j] = 0;
    for (uint b = lane; b < blocks; b += LANES) {
        uint4 word[ROWS_PER_SET][2];
        float factor[ROWS_PER_SET][2];  // of columns 0..63 and 64..127 of the block
        UNROLL
        for (uint r = 0; r < ROWS_PER_SET; ++r) {
            const ulong n = min(n0 + r, outs - 1);
            word[r][0] = load_once(w + (n * blocks + b) * 2);
            word[r][1] = load_once(w + (n * blocks + b) * 2 + 1);
            __global const float *factors = wscale + n * CEIL_DIV(width, BLOCK) + 128 * b / BLOCK;
            factor[r][0] = factors[0];
            factor[r][1] = factors[BLOCK == 64];
        }
        UNROLL
        for (uint j = 0; j < TILE_T; ++j) {
            const ulong t = min(t0 + j, rows - 1);
            UNROLL
            for (uint plane = 0; plane < 4; ++plane) {
                uint4 x[2];
                x[0] = q[(t * blocks + b) * 8 + 2 * plane];
                x[1] = q[(t * blocks + b) * 8 + 2 * plane + 1];
#if ABLOCK
                const int minus = -qsum[(t * blocks + b) * 4 + plane];
                const float own = scale[(t * blocks + b) * 4 + plane];
#else
                const int minus = -sum_of(x);
                const float own = 1.0f;
#endif
                UNROLL
                for (uint r = 0; r < ROWS_PER_SET; ++r) {
                    int sum = minus;
                    UNROLL
                    for (uint i = 0; i < 2; ++i) {
                        const uint4 code = PLANE(word[r][i], plane);
                        sum = dot4(code.x, x[i].x, sum);
                        sum = dot4(code.y, x[i].y, sum);
                        sum = dot4(code.z, x[i].z, sum);
                        sum = dot4(code.w, x[i].w, sum);
                    }
                    sums[r][j] = fma((float)sum * own, factor[r][plane / 2], sums[r][j]);
                }
            }
        }
    }
    UNROLL
    for (uint r = 0; r < ROWS_PER_SET; ++r)
        UNROLL
        for (uint j = 0; j < TILE_T; ++j) {
            const float sum = lanes_sum(sums[r][j], scratch, LANES);
            if (lane != 0 || n0 + r >= outs || t0 + j >= rows) continue;
            const float value = ABLOCK ? sum : sum * scale[t0 + j];
            __global float *to = y + (ulong)(t0 + j) * y_stride + y_first + n0 + r;
#if ADD
            *to += value;
#else
            *to = value;
#endif
        }
}

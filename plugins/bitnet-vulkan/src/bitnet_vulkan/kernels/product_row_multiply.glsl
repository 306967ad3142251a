// Part of main(), after product_row_load.glsl and when q is complete (product_row.glsl).
    for (uint i = LID; i < 8 * BLOCKS; i += GROUP) x[i % 8 * PITCH + i / 8] = q4[i];
    for (uint i = LID; i < BLOCKS; i += GROUP) {
        scales_of[i] = scale4[i];
        sums_of[i] = qsum4[i];
    }
    barrier();
    float sums[ROWS_PER];
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++) sums[r] = 0.0;
    for (;;) {
        uint b = min(first, BLOCKS - 1);
        vec4 scales = scales_of[b];
        ivec4 minus = sums_of[b];
        [[unroll]] for (uint plane = 0; plane < 4; plane++) {
            uvec4 x0 = x[2 * plane * PITCH + b], x1 = x[(2 * plane + 1) * PITCH + b];
            uint mask = 0xc0c0c0c0u >> (2 * plane), shift = 6 - 2 * plane;
            float unit = scales[plane] * (1.0 / float(1 << shift));
            [[unroll]] for (uint r = 0; r < ROWS_PER; r++) {
                int sum = -minus[plane] * (1 << shift);
                sum = wide_dot16(words[r][0] & mask, x0, wide_dot16(words[r][1] & mask, x1, sum));
                sums[r] += float(sum) * unit * (plane < 2 ? units[r].x : units[r].y);
            }
        }
        first += LANES;
        if (first >= BLOCKS + lane) break;
        LOAD
    }
    [[unroll]] for (uint r = 0; r < ROWS_PER; r++)
        [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) sums[r] += subgroupShuffleXor(sums[r], d);
    float sum = sums[0];
    [[unroll]] for (uint r = 1; r < ROWS_PER; r++) sum = lane == r ? sums[r] : sum;
    if (writes) y[p.y_first + own] = before + sum;

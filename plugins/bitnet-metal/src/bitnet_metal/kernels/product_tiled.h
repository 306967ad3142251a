// y = w . q in tiles of TILE_T = 32 rows of activations by TILE_N = 64 matrix rows, 64 columns (two planes of a block)
// at a time: both pass through threadgroup memory as f16, and simdgroup s multiplies its 16 matrix rows with all 32.
// GROUP is 128.
// Exact: -1, 0, 1 and -128..127 are f16 numbers, a product of two is an integer of at most 128, and the sums are f32:
// partial sums over K columns are integers of at most 128 K < 2^24 for K < 131,072. The layout of a simdgroup_matrix in
// lanes is not documented, so sums pass through threadgroup memory.
inline void tiled(device const uint *w, device const float *wscale, device const char4 *q, device const float *scale,
                  device float *y, constant Params &p, uint3 group, uint tid, threadgroup half *tile_w,
                  threadgroup half *tile_q, threadgroup float *tile_y) {
    uint lane = tid % 32, simd = tid / 32, outs = group.x * 64, rows = group.y * 32;
    uint words = p.width / 16, scales = BLOCK == 0 ? 1 : (p.width + BLOCK - 1) / max(BLOCK, 1u);
    simdgroup_float8x8 sums[8];  // [row of activations / 8][matrix row / 8]
    for (uint i = 0; i < 8; i++) sums[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    float values[16] = {};  // elements lane, lane + 32, ... of the simdgroup's 32 by 16
    threadgroup float *mine = tile_y + simd * 16;
    for (uint part = 0; part < p.width / 64; part++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < 512; i += 128) {
            uint word = w[min(outs + i / 8, p.outs - 1) * words + part / 2 * 8 + i % 8];
            for (uint s = 0; s < 2; s++) {
                uint codes = word >> (6 - 4 * (part % 2) - 2 * s) & 0x03030303u;
                threadgroup half4 *to = (threadgroup half4 *)(tile_w + i / 8 * 64 + s * 32);
                to[i % 8] = half4(as_type<uchar4>(codes)) - half4(1);
            }
        }
        for (uint i = tid; i < 512; i += 128) {
            char4 codes = q[min(rows + i / 16, p.rows - 1) * (p.width / 4) + part * 16 + i % 16];
            threadgroup half4 *to = (threadgroup half4 *)(tile_q + i / 16 * 64);
            to[i % 16] = half4(codes);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint s = 0; s < 2; s++) {
            for (uint k = s * 32; k < s * 32 + 32; k += 8) {
                simdgroup_half8x8 a, b[2];
                for (uint n = 0; n < 2; n++) simdgroup_load(b[n], tile_w + (simd * 16 + n * 8) * 64 + k, 64, 0, true);
                for (uint m = 0; m < 4; m++) {
                    simdgroup_load(a, tile_q + m * 8 * 64 + k, 64);
                    for (uint n = 0; n < 2; n++) simdgroup_multiply_accumulate(sums[2 * m + n], a, b[n], sums[2 * m + n]);
                }
            }
            uint end = part * 64 + s * 32 + 32;
            if (end != p.width && (BLOCK == 0 || (ABLOCK == 0 && end % max(BLOCK, 1u) != 0))) continue;
            for (uint i = 0; i < 8; i++) {
                simdgroup_store(sums[i], mine + i / 2 * 8 * 64 + i % 2 * 8, 64);
                sums[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = 0; i < 16; i++) {
                uint e = lane + 32 * i, row = min(rows + e / 16, p.rows - 1), n = min(outs + simd * 16 + e % 16, p.outs - 1);
                float sum = mine[e / 16 * 64 + e % 16];
                if (BLOCK != 0) sum *= wscale[n * scales + (end - 32) / max(BLOCK, 1u)];
                if (ABLOCK != 0) sum *= scale[row * (p.width / 32) + (end - 32) / 32];
                values[i] += sum;
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
    for (uint i = 0; i < 16; i++) {
        uint e = lane + 32 * i, row = rows + e / 16, n = outs + simd * 16 + e % 16;
        if (row >= p.rows || n >= p.outs) continue;
        float value = values[i];
        if (ABLOCK == 0) value *= scale[row];
        if (BLOCK == 0) value *= wscale[n];
        uint at = row * p.y_stride + p.y_first + n;
        y[at] = ADD == 1 ? y[at] + value : value;
    }
}

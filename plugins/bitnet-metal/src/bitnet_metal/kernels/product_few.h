// y = w . q for TILE_T <= 4 rows of activations: a simdgroup computes OUTS matrix rows and its lanes share their words,
// so that activations are unpacked once for all of them. TILE_N = GROUP / 32 * OUTS; OUTS * TILE_T <= 16. codes.h shows
// that the sums are exact.
inline void few(device const uint *w, device const float *wscale, device const char4 *q, device const float *scale,
                device const int *qsum, device float *y, constant Params &p, uint3 group, uint tid) {
    uint lane = tid % 32, out = group.x * TILE_N + tid / 32 * OUTS, first = group.y * TILE_T;
    uint words = p.width / 16, scales = BLOCK == 0 ? 1 : (p.width + BLOCK - 1) / max(BLOCK, 1u);
    float sums[16] = {};  // [row of activations][matrix row]
    for (uint i = lane; i < words; i += 32) {
        for (uint t = 0; t < TILE_T; t++) {
            uint row = min(first + t, p.rows - 1);
            Columns c = columns_of(q + row * (p.width / 4), i);
            for (uint r = 0; r < OUTS; r++) {
                uint n = min(out + r, p.outs - 1);
                float4 exact = dots(w[n * words + i], c);
                if (BLOCK == 0) {
                    sums[OUTS * t + r] += exact.x + exact.y + exact.z + exact.w;
                } else {
                    sums[OUTS * t + r] += scaled(exact - c.sums, wscale + n * scales, scale + row * (p.width / 32), i / 8);
                }
            }
        }
    }
    for (uint t = 0; t < TILE_T; t++) {
        for (uint r = 0; r < OUTS; r++) {
            float sum = simd_sum(sums[OUTS * t + r]);
            uint row = first + t, n = out + r;
            if (lane != 0 || row >= p.rows || n >= p.outs) continue;
            if (BLOCK == 0) sum = (sum - float(qsum[row])) * scale[row] * wscale[n];
            if (BLOCK != 0 && ABLOCK == 0) sum *= scale[row];
            uint at = row * p.y_stride + p.y_first + n;
            y[at] = ADD == 1 ? y[at] + sum : sum;
        }
    }
}

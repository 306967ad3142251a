// A product for one row, whose activations every threadgroup norms and quantizes into threadgroup memory: at most ROOM
// columns. A simdgroup computes four matrix rows. codes.h shows that the sums are exact.
struct Plain {
    device const float *x;
    float at(uint k) const { return x[k]; }
};

// Writes codes to q and block scales to scales; returns the row's scale if ABLOCK is 0, and the sum of all codes in
// total.
inline float prepare(device const float *x, device const float *gamma, uint columns, uint width, float eps,
                     threadgroup char4 *q, threadgroup float *scales, threadgroup uint *room, uint tid, thread int &total) {
    Plain row = {x};
    Found found = find(row, gamma, columns, eps, room, tid);
    int sum = 0;
    for (uint first = 0; first < width / 4; first += GROUP) {
        uint i = first + tid;
        float absmax;
        char4 codes = codes_at(row, gamma, i, columns, found, absmax);
        if (i < width / 4) {
            q[i] = codes;
            sum += sum_of(codes);
            if (ABLOCK != 0 && i % 8 == 0) scales[i / 8] = or_nan(absmax / 127.0f, found.bad);
        }
    }
    total = group_sum_exact(sum, room, tid);  // its barriers also separate writing and reading q
    return or_nan(found.absmax / 127.0f, found.bad);
}

// Returns this lane's share of the sums of four matrix rows n.
inline float4 multiply(device const uint *w, device const float *wscale, uint4 n, uint width, threadgroup const char4 *q,
                       threadgroup const float *scales, uint lane) {
    uint words = width / 16, blocks = BLOCK == 0 ? 1 : (width + BLOCK - 1) / max(BLOCK, 1u);
    float4 sums = float4(0.0f);
    for (uint i = lane; i < words; i += 32) {
        Columns c = columns_of(q, i);
        for (uint r = 0; r < 4; r++) {
            float4 exact = dots(w[n[r] * words + i], c);
            if (BLOCK == 0) sums[r] += exact.x + exact.y + exact.z + exact.w;
            else sums[r] += scaled(exact - c.sums, wscale + n[r] * blocks, scales, i / 8);
        }
    }
    return sums;
}

inline float finished(float sum, int total, float scale, device const float *wscale, uint n) {
    if (BLOCK == 0) return (sum - float(total)) * scale * wscale[n];
    return ABLOCK == 0 ? sum * scale : sum;
}

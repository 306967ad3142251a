// y (+)= a warp's share of a tile: M x T pieces of 16 weight rows x 8 tokens in the layout of mma, M_STEP rows apart.
// Lane (g, t) has rows g and g + 8 of tokens 2 t and 2 t + 1 of each piece; first_n and first_token include its g and 2
// t. value(m, i, j, n, token): element j of piece (m, i). The old values of several pieces are read at once, before any
// is written: a load after a store to the same array would wait for it.
template <int M, int T, int M_STEP, class Value>
__device__ inline void store_tile(float* y, u32 y_stride, u32 first_n, u32 outs, u32 first_token, u32 rows, Value value) {
    constexpr int AT_ONCE = M >= 4 ? 1 : (4 / M < T ? 4 / M : T);
#pragma unroll
    for (int some = 0; some < T; some += AT_ONCE) {
        float old[AT_ONCE * M * 4];
#pragma unroll
        for (int e = 0; ADD && e < AT_ONCE * M * 4; e++) {
            u32 n = first_n + M_STEP * (e / 4 % M) + 8 * (e % 4 / 2), token = first_token + 8 * (some + e / (4 * M)) + e % 2;
            old[e] = n < outs && token < rows ? y[(size_t)token * y_stride + n] : 0.0f;
        }
#pragma unroll
        for (int e = 0; e < AT_ONCE * M * 4; e++) {
            int m = e / 4 % M, i = some + e / (4 * M), j = e % 4;
            u32 n = first_n + M_STEP * m + 8 * (j / 2), token = first_token + 8 * i + j % 2;
            if (n >= outs || token >= rows) continue;
            float v = value(m, i, j, n, token);
            y[(size_t)token * y_stride + n] = ADD ? old[e] + v : v;
        }
    }
}

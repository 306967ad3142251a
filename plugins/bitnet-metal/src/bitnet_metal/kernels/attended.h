// Writes a threadgroup's result to out or, if SPLITS of them share the positions, to the workspace, from which
// merge_row computes out. workspace f32[rows, n_heads, SPLITS, HEAD_DIM + 2]: largest score, sum of weights, values.
inline void write_out(thread const Attended &state, threadgroup const float2 *sums, bool used, device float *out, uint tid) {
    for (uint h = 0; h < TILE_N; h++) {  // out: the first of the heads
        for (uint j = tid; j < PAIRS; j += GROUP) {
            float2 mean = sums[h * PAIRS + j] / state.total[h];
            out[h * HEAD_DIM + 2 * j] = used ? mean.x : 0.0f;
            out[h * HEAD_DIM + 2 * j + 1] = used ? mean.y : 0.0f;
        }
    }
}

inline void keep(thread const Attended &state, threadgroup const float2 *sums, device float *parts, uint split, uint tid) {
    for (uint h = 0; h < TILE_N; h++) {  // parts: of the first of the heads
        device float *to = parts + (h * SPLITS + split) * (HEAD_DIM + 2);
        for (uint j = tid; j < PAIRS; j += GROUP) {
            to[2 + 2 * j] = sums[h * PAIRS + j].x;
            to[3 + 2 * j] = sums[h * PAIRS + j].y;
        }
        if (tid == 0) {
            to[0] = state.most[h];
            to[1] = state.total[h];
        }
    }
}

inline void merge_row(device const float *parts, bool used, device float *out, uint tid) {
    for (uint h = 0; h < TILE_N; h++) {
        device const float *from = parts + h * SPLITS * (HEAD_DIM + 2);
        float most = LOW, total = 0.0f;
        for (uint s = 0; s < SPLITS; s++) most = max(most, from[s * (HEAD_DIM + 2)]);
        for (uint s = 0; s < SPLITS; s++) total += from[s * (HEAD_DIM + 2) + 1] * exp(from[s * (HEAD_DIM + 2)] - most);
        for (uint d = tid; d < HEAD_DIM; d += GROUP) {
            float sum = 0.0f;
            for (uint s = 0; s < SPLITS; s++) sum += from[s * (HEAD_DIM + 2) + 2 + d] * exp(from[s * (HEAD_DIM + 2)] - most);
            out[h * HEAD_DIM + d] = used ? sum / total : 0.0f;
        }
    }
}

inline uint2 share_of(uint length, uint split) {  // returns begin and end, whole blocks of 32 positions
    uint each = (length + SPLITS * 32 - 1) / (SPLITS * 32) * 32;
    return min(uint2(split, split + 1) * each, uint2(length));
}

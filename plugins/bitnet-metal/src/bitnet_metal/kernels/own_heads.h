// Loads a row's TILE_N queries from `first` on, and its own key and value as cache rows, into threadgroup memory; one
// simdgroup per head.
constant constexpr uint OWN = 512;  // maximum words of a cache row

inline void take_heads(device const float *x, device const float *q_gamma, device const float *k_gamma,
                       device const float2 *angles, constant Params &p, uint first, uint kv_head,
                       threadgroup float2 *queries, threadgroup uint *own_key, threadgroup uint *own_value, uint tid) {
    uint lane = tid % 32;
    device const float *key = x + (p.n_heads + kv_head) * HEAD_DIM;
    device const float *value = x + (p.n_heads + p.n_kv_heads + kv_head) * HEAD_DIM;
    for (uint i = tid / 32; i < TILE_N + 2; i += GROUP / 32) {
        if (i < TILE_N) {
            Head head = turned(x + (first + i) * HEAD_DIM, q_gamma, angles, p.eps, lane);
            write_floats(head, (threadgroup float *)(queries + i * PAIRS), lane);
        } else if (i == TILE_N) {
            store(turned(key, k_gamma, angles, p.eps, lane), own_key, lane);
        } else {
            store(plain(value, lane), own_value, lane);
        }
    }
}

// x[t, k] = (code[token[t] - first, k] - 1) * wscale[token[t] - first, k / BLOCK]; one thread per element.
// w u8[count, width / 4]; wscale f32[count, ceil(width / BLOCK)]; step i32[rows, 4]; x f32[rows, hidden].
kernel void embed_rows_ternary(device const uchar *w [[buffer(0)]], device const float *wscale [[buffer(1)]],
                               device const int4 *step [[buffer(2)]], device float *x [[buffer(3)]],
                               constant Params &p [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                               uint tid [[thread_index_in_threadgroup]]) {
    uint k = group.x * TILE_N + tid, row = uint(step[group.y].x) - p.first;
    if (k >= p.hidden || row >= p.count) return;
    uint code = w[ulong(row) * (p.width / 4) + k / 128 * 32 + k % 32] >> (6 - k % 128 / 32 * 2) & 3;
    uint blocks = (p.width + BLOCK - 1) / BLOCK;
    x[group.y * p.hidden + k] = (float(code) - 1.0f) * wscale[row * blocks + k / BLOCK];
}

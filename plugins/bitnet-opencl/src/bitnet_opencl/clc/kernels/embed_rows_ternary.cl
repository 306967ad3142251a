// x[t, k] = (code[token[t] - first, k] - 1) * wscale[token[t] - first, k / BLOCK] for the tokens that this part of the
// table holds; other rows are unchanged.
// w u8[count, width / 4]; wscale f32[count, ceil(width / BLOCK)]; step i32[rows, 4]; x f32[rows, hidden].
// Group: TILE_N columns of one row.
KERNEL embed_rows_ternary(ARGUMENTS) {
    PARAMETERS
    AT_IN(uchar, w);
    AT_IN(float, wscale);
    AT_IN(int, step);
    AT_OUT(float, x);
    const uint t = get_group_id(1);
    const int token = step[4 * t];
    if (token < 0 || (uint)token < first || (uint)token - first >= count) return;
    const ulong n = (uint)token - first;
    const uint start = get_group_id(0) * TILE_N, end = min(start + TILE_N, hidden);
    for (uint k = start + get_local_id(0); k < end; k += GROUP) {
        const uint code = w[n * (width / 4) + k / 128 * 32 + k % 32] >> (6 - 2 * (k / 32 % 4)) & 3;
        x[(ulong)t * hidden + k] = ((float)code - 1.0f) * wscale[n * CEIL_DIV(width, BLOCK) + k / BLOCK];
    }
}

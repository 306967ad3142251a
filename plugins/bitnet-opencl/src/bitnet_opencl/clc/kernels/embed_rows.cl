// x[t, :] = table[token[t] - first, :] for the tokens that this part of the table holds; other rows are unchanged.
// table: count rows of DTYPE; step i32[rows, 4]; x f32[rows, hidden]. Group: TILE_N columns of one row.
#include "dense.clh"
KERNEL embed_rows(ARGUMENTS) {
    PARAMETERS
    AT_IN(uchar, table);
    AT_IN(int, step);
    AT_OUT(float, x);
    const uint t = get_group_id(1);
    const int token = step[4 * t];
    if (token < 0 || (uint)token < first || (uint)token - first >= count) return;
    __global const uchar *row = table + ((uint)token - first) * TABLE_ROW_BYTES(hidden);
    const uint start = get_group_id(0) * TILE_N;
    const uint end = min(start + TILE_N, hidden);
    for (uint i = start + get_local_id(0); i < end; i += GROUP) x[(ulong)t * hidden + i] = table_value(row, i);
}

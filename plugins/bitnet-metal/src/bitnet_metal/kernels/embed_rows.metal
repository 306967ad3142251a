// x[t, k] = table[token[t] - first, k] for rows with first <= token[t] < first + count; one thread per element.
// table[count, hidden] of DTYPE; step i32[rows, 4]; x f32[rows, hidden].
#include "dense.h"
kernel void embed_rows(device const uchar *table [[buffer(0)]], device const int4 *step [[buffer(1)]],
                       device float *x [[buffer(2)]], constant Params &p [[buffer(3)]],
                       uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    uint k = group.x * TILE_N + tid, row = uint(step[group.y].x) - p.first;
    if (k < p.hidden && row < p.count) x[group.y * p.hidden + k] = element(table + row * row_bytes_of(p.hidden), k);
}

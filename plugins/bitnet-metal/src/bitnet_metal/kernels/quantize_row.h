// Writes a row to q, scale and qsum, which point to the row; a thread quantizes four columns at a time.
template <class Row>
inline void quantize_row(Row row, device const float *gamma, uint columns, uint stride, float eps, device char4 *q,
                         device float *scale, device int *qsum, threadgroup uint *room, uint tid) {
    Found found = find(row, gamma, columns, eps, room, tid);
    int total = 0;
    for (uint first = 0; first < stride / 4; first += GROUP) {
        uint i = first + tid;
        float absmax;
        char4 codes = codes_at(row, gamma, i, columns, found, absmax);
        int sum = sum_of(codes);
        if (ABLOCK != 0) sum = sum_of_32(sum);
        if (i < stride / 4) {
            q[i] = codes;
            total += sum;
            if (ABLOCK != 0 && i % 8 == 0) {
                scale[i / 8] = or_nan(absmax / 127.0f, found.bad);
                qsum[i / 8] = sum;
            }
        }
    }
    if (ABLOCK != 0) return;
    total = group_sum_exact(total, room, tid);
    if (tid == 0) {
        scale[0] = or_nan(found.absmax / 127.0f, found.bad);
        qsum[0] = total;
    }
}

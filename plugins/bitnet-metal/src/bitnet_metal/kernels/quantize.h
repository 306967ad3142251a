// Absmax quantization of rows, normed if NORM is 1 (conventions in `bitnet kernels all`).
// Row: a type whose at(k) returns element k < columns.
#include "four_columns.h"
struct Found {
    float factor;  // of the norm
    float absmax;
    bool bad;  // the row holds a NaN or Inf, or its sum of squares overflows
};

inline float least_absmax() { return ABLOCK != 0 ? 1e-20f : 1e-5f; }

template <class Row>
inline float normed(Row row, device const float *gamma, uint k, uint columns, float factor) {
    if (k >= columns) return 0.0f;
    return NORM == 1 ? row.at(k) * factor * gamma[k] : row.at(k);
}

template <class Row>
inline Found find(Row row, device const float *gamma, uint columns, float eps, threadgroup uint *room, uint tid) {
    Found found = {1.0f, 0.0f, false};
    if (NORM == 1) {
        float sum = 0.0f;
        for (uint k = tid; k < columns; k += GROUP) sum += row.at(k) * row.at(k);
        float mean = group_sum(sum, room, tid) / float(columns);
        found.factor = 1.0f / sqrt(mean + eps);
        found.bad = is_bad(mean);
    }
    uint most = 0;
    for (uint k = tid; k < columns; k += GROUP) most = max(most, size_bits(normed(row, gamma, k, columns, found.factor)));
    most = group_max(most, room, tid);
    found.bad = found.bad || most >= 0x7f800000u;
    found.absmax = max(as_type<float>(most), least_absmax());
    return found;
}

template <class Row>
inline float4 four(Row row, device const float *gamma, uint k, uint columns, float factor) {
    return float4(normed(row, gamma, k, columns, factor), normed(row, gamma, k + 1, columns, factor),
                  normed(row, gamma, k + 2, columns, factor), normed(row, gamma, k + 3, columns, factor));
}

// Columns 4 i .. 4 i + 3, and the absmax that they share: of the row, or of ABLOCK columns.
template <class Row>
inline char4 codes_at(Row row, device const float *gamma, uint i, uint columns, Found found, thread float &absmax) {
    float4 y = four(row, gamma, 4 * i, columns, found.factor);
    absmax = ABLOCK != 0 ? max(block_max(absmax_of(y)), least_absmax()) : found.absmax;
    char4 codes = char4(0);
    if (!found.bad) codes = codes_of(y, 127.0f / absmax);
    return codes;
}

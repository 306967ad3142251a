// Elements of rows of dense tables of type DTYPE; row points to the first byte, which has an even address.
inline uint byte_at(device const uchar *row, uint i) { return row[i]; }
inline float code_at(device const uchar *row, uint i) { return float(as_type<char>(row[i])); }
inline float half_at(device const uchar *row, uint i) { return float(((device const half *)(row + i))[0]); }

inline float q6_k(device const uchar *block, uint k) {  // element k of the 256 in 210 bytes
    uint part = k / 128, quarter = k % 128 / 32;
    uint low = byte_at(block, part * 64 + quarter % 2 * 32 + k % 32) >> (quarter / 2 * 4);
    uint high = byte_at(block, 128 + part * 32 + k % 32) >> (2 * quarter);
    float code = float((low & 15) | (high & 3) << 4) - 32.0f;
    return half_at(block, 208) * code_at(block, 192 + k / 16) * code;
}

inline float element(device const uchar *row, uint k) {
    if (DTYPE == 0) return ((device const float *)row)[k];
    if (DTYPE == 1) return half_at(row, 2 * k);
    if (DTYPE == 2) return as_type<float>(uint(((device const ushort *)row)[k]) << 16);
    if (DTYPE == 3) return half_at(row, k / 32 * 34) * code_at(row, k / 32 * 34 + 2 + k % 32);
    return q6_k(row + k / 256 * 210, k % 256);
}

inline ulong row_bytes_of(uint columns) {
    if (DTYPE == 0) return 4ul * columns;
    if (DTYPE == 3) return columns / 32 * 34ul;
    if (DTYPE == 4) return columns / 256 * 210ul;
    return 2ul * columns;
}

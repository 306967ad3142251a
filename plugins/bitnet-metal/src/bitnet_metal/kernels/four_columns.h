// A lane's four neighbouring columns of a row that is quantized, and the maximum over the ABLOCK columns around them.
inline float absmax_of(float4 y) { return max(max(fabs(y.x), fabs(y.y)), max(fabs(y.z), fabs(y.w))); }

inline char4 codes_of(float4 y, float inverse) {
    return char4(clamp(rint(y * inverse), float4(-128.0f), float4(127.0f)));
}

inline int sum_of(char4 codes) { return int(codes.x) + int(codes.y) + int(codes.z) + int(codes.w); }

// Returns the maximum of ABLOCK columns: eight neighbours have 32, a simdgroup has 128.
template <class T>
inline T block_max(T x) {
    if (ABLOCK == 128) return simd_max(x);
    x = max(x, simd_shuffle_xor(x, ushort(1)));
    x = max(x, simd_shuffle_xor(x, ushort(2)));
    return max(x, simd_shuffle_xor(x, ushort(4)));
}

inline int sum_of_32(int x) {
    x += simd_shuffle_xor(x, ushort(1));
    x += simd_shuffle_xor(x, ushort(2));
    return x + simd_shuffle_xor(x, ushort(4));
}

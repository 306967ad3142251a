// The emulator's words for what the portable kernels ask for.
#define KERNEL_RESIDENT(blocks) KERNEL
inline float half_to_float(unsigned short h) { return _cvtsh_ss(h); }
inline unsigned short float_to_half(float f) { return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT); }
inline int dot4(unsigned a, unsigned b, int acc) {
    for (int i = 0; i < 4; i++) acc += (int)(signed char)(a >> 8 * i) * (signed char)(b >> 8 * i);
    return acc;
}
template <int I>
inline float signed_byte(unsigned word) {
    return (float)(signed char)(word >> 8 * I);
}
inline int nearest(float v) { return v == v ? (int)rintf(v) : 0; }
inline unsigned nearest_bytes(const float* v, float factor) {
    unsigned packed = 0;
    for (int i = 0; i < 4; i++) packed |= ((unsigned)nearest(v[i] * factor) & 255u) << (8 * i);
    return packed;
}
inline unsigned rotated_right(unsigned v, unsigned bits) { return v >> (bits & 31) | v << (-bits & 31); }
inline float reciprocal(float v) { return 1.0f / v; }
inline float quotient(float a, float b) { return a / b; }
inline Words load_streaming(const Words* p) { return *p; }
inline int warp_sum_int(int v) {
    for (int d = 16; d > 0; d >>= 1) v += shuffle_xor(v, d);
    return v;
}
inline unsigned warp_max_bits(unsigned v) {
    for (int d = 16; d > 0; d >>= 1) v = max(v, shuffle_xor(v, d));
    return v;
}
inline unsigned arrive(unsigned* counter) { return atomicAdd(counter, 1u); }
inline void settle() {}
inline void let_next_start() {}
inline void wait_for_previous() {}
inline void fetch(const void*, unsigned) {}
inline void fetch_ahead(const unsigned char*, unsigned) {}

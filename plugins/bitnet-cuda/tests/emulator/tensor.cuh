// The emulator's tensor cores.
// mma.sync m16n8k32 by the fragment layout of the PTX manual; Code is the type of a's bytes.
template <class Code>
void mma_bytes(int* c, const unsigned* a, unsigned b0, unsigned b1) {
    uint64_t low[32], high[32], b[32];
    memcpy(low, simt::meet(a[0] | (uint64_t)a[1] << 32), sizeof low);
    memcpy(high, simt::meet(a[2] | (uint64_t)a[3] << 32), sizeof high);
    memcpy(b, simt::meet(b0 | (uint64_t)b1 << 32), sizeof b);
    unsigned lane = simt::lane();
    for (unsigned j = 0; j < 4; j++) {
        unsigned row = lane / 4 + 8 * (j / 2), column = 2 * (lane % 4) + j % 2;
        for (unsigned k = 0; k < 32; k++) {
            const uint64_t* words = k < 16 ? low : high;
            unsigned from = row % 8 * 4 + k % 16 / 4;
            Code code = words[from] >> (32 * (row / 8) + 8 * (k % 4));
            signed char q = b[column * 4 + k % 16 / 4] >> (32 * (k / 16) + 8 * (k % 4));
            c[j] += code * q;
        }
    }
}

inline void mma(int* c, const unsigned* a, unsigned b0, unsigned b1) { mma_bytes<unsigned char>(c, a, b0, b1); }
inline void mma_from(int start, int* d, const unsigned* a, unsigned b0, unsigned b1) {
    for (unsigned i = 0; i < 4; i++) d[i] = start;
    mma(d, a, b0, b1);
}
inline void mma_signed(int* c, const unsigned* a, unsigned b0, unsigned b1) { mma_bytes<signed char>(c, a, b0, b1); }
// mma.sync m16n8k256 of single bits: a lane's words have the same places.
inline void mma_bits(int* c, const unsigned* a, unsigned b0, unsigned b1) {
    uint64_t low[32], high[32], b[32];
    memcpy(low, simt::meet(a[0] | (uint64_t)a[1] << 32), sizeof low);
    memcpy(high, simt::meet(a[2] | (uint64_t)a[3] << 32), sizeof high);
    memcpy(b, simt::meet(b0 | (uint64_t)b1 << 32), sizeof b);
    unsigned lane = simt::lane();
    for (unsigned j = 0; j < 4; j++) {
        unsigned row = lane / 4 + 8 * (j / 2), column = 2 * (lane % 4) + j % 2;
        for (unsigned t = 0; t < 4; t++) {
            unsigned from = row % 8 * 4 + t, shift = 32 * (row / 8);
            c[j] += __builtin_popcount((unsigned)(low[from] >> shift) & (unsigned)b[column * 4 + t]);
            c[j] += __builtin_popcount((unsigned)(high[from] >> shift) & (unsigned)(b[column * 4 + t] >> 32));
        }
    }
}

#define DYNAMIC_SHARED(type, name) static type name[SHARED / sizeof(type)]
inline void load_matrices(unsigned* r, const void* row) {
    const unsigned* rows[32];
    memcpy(rows, simt::meet((uint64_t)row), sizeof rows);
    for (unsigned i = 0; i < 4; i++) r[i] = rows[8 * i + simt::lane() / 4][simt::lane() % 4];
}
inline void load_matrices_transposed(unsigned* r, const void* row) {
    const unsigned short* rows[32];
    memcpy(rows, simt::meet((uint64_t)row), sizeof rows);
    unsigned k = 2 * (simt::lane() % 4), n = simt::lane() / 4;
    for (unsigned i = 0; i < 4; i++) r[i] = rows[8 * i + k][n] | (unsigned)rows[8 * i + k + 1][n] << 16;
}
inline unsigned shared_address(const void* p) { return (unsigned)(uintptr_t)p; }
inline unsigned pack_halves(float a, float b) { return float_to_half(a) | (unsigned)float_to_half(b) << 16; }
inline unsigned multiply_add_halves(unsigned a, unsigned b, unsigned c) {
    auto one = [=](unsigned shift) {
        auto part = [=](unsigned pair) { return half_to_float((unsigned short)(pair >> shift)); };
        return fmaf(part(a), part(b), part(c));  // in f32 exact where it is exact in f16: elsewhere rounded twice
    };
    return pack_halves(one(0), one(16));
}

// mma.sync m16n8k16 f16.f16.f32 by the fragment layout of the PTX manual; sums in double.
inline void mma_half(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    uint64_t low[32], high[32], b[32];
    memcpy(low, simt::meet(a[0] | (uint64_t)a[1] << 32), sizeof low);
    memcpy(high, simt::meet(a[2] | (uint64_t)a[3] << 32), sizeof high);
    memcpy(b, simt::meet(b0 | (uint64_t)b1 << 32), sizeof b);
    unsigned lane = simt::lane();
    for (unsigned j = 0; j < 4; j++) {
        unsigned row = lane / 4 + 8 * (j / 2), column = 2 * (lane % 4) + j % 2;
        double sum = c[j];
        for (unsigned k = 0; k < 16; k++) {
            unsigned from = k % 8 / 2, shift = 16 * (k % 2);
            uint64_t x = (k < 8 ? low : high)[row % 8 * 4 + from] >> (32 * (row / 8) + shift);
            uint64_t y = b[column * 4 + from] >> (32 * (k / 8) + shift);
            sum += (double)half_to_float((unsigned short)x) * half_to_float((unsigned short)y);
        }
        c[j] = (float)sum;
    }
}
// mma.sync m16n8k8 tf32.tf32.f32 likewise: the lowest 13 bits of a factor do not count.
inline void mma_tf32(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    uint64_t left[32], right[32], b[32];
    memcpy(left, simt::meet(a[0] | (uint64_t)a[1] << 32), sizeof left);
    memcpy(right, simt::meet(a[2] | (uint64_t)a[3] << 32), sizeof right);
    memcpy(b, simt::meet(b0 | (uint64_t)b1 << 32), sizeof b);
    unsigned lane = simt::lane();
    auto factor = [](uint64_t words, unsigned high) { return (double)__uint_as_float((unsigned)(words >> 32 * high) & 0xffffe000u); };
    for (unsigned j = 0; j < 4; j++) {
        unsigned row = lane / 4 + 8 * (j / 2), column = 2 * (lane % 4) + j % 2;
        double sum = c[j];
        for (unsigned k = 0; k < 8; k++)
            sum += factor((k < 4 ? left : right)[row % 8 * 4 + k % 4], row / 8) * factor(b[column * 4 + k % 4], k / 4);
        c[j] = (float)sum;
    }
}
inline void copy_async_or_zero(void* to, const void* from, bool wanted) {
    wanted ? memcpy(to, from, 16) : memset(to, 0, 16);
}
// At once: a kernel that does not wait for its copies is not found out.
inline void copy_async(void* to, const void* from) { memcpy(to, from, 16); }
inline void copy_async_ahead(void* to, const void* from) { memcpy(to, from, 16); }
inline void copy_async_word(void* to, const void* from) { memcpy(to, from, 4); }
inline void copy_group() {}
template <int pending>
void copy_wait() {}
inline float power_of_two(float v) { return exp2f(v); }
inline bool any_lane(bool so) { return warp_max_bits(so); }

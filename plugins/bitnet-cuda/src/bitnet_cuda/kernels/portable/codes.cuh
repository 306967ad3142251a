// Int8 codes of f32 values, four at a time: a = max(max|y|, floor), q = round_half_even(y * 127 / a), scale = a / 127,
// over the row (ABLOCK 0, floor 1e-5) or over each ABLOCK columns (floor 1e-20).
struct alignas(16) Four {
    float v[4];
};

// Returns columns k .. k + 3 of a row of `width` floats, 0 past its end.
__device__ inline Four four_of(const float* row, u32 k, u32 width) {
    if (width % 4 == 0) return k < width ? *(const Four*)(row + k) : Four{{0.0f, 0.0f, 0.0f, 0.0f}};
    Four four;
    for (u32 i = 0; i < 4; i++) four.v[i] = k + i < width ? row[k + i] : 0.0f;
    return four;
}

// Returns the largest |v| as bits, which have the same order as the numbers, with Inf and NaN above all.
__device__ inline u32 largest_bits(const float* v) {
    u32 largest = 0;
    for (int i = 0; i < 4; i++) largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
    return largest;
}

// Returns the factor that turns values into codes, and their scale. top: the largest |raw * gamma|; inverse: 1 / root
// mean square.
struct Scaling {
    float factor, scale;
};
__device__ inline Scaling scaling_of(u32 top_bits, float inverse) {
    const float floor = ABLOCK ? 1e-20f : 1e-5f;
    float top = __uint_as_float(top_bits), a = top * inverse;
    return a < floor ? Scaling{127.0f / floor * inverse, floor / 127.0f} : Scaling{127.0f * reciprocal(top), a * (1.0f / 127.0f)};
}

// Returns four codes in a word, all 0 if factor is 0, and adds their sum to total.
__device__ inline u32 four_codes(const float* v, float factor, int& total) {
    u32 packed = factor == 0.0f ? 0 : nearest_bytes(v, factor);
    total = dot4(0x01010101u, packed, total);
    return packed;
}

// The sum of squares of a row: of four columns, then of eight neighbouring threads' 32, then of all groups of 32. A
// norm that is joined with a product (joined_norm.cuh) has the same order, hence the same bits.
__device__ inline float squares_of_group(const float* v) {
    float sum = v[0] * v[0];
    for (int i = 1; i < 4; i++) sum = fmaf(v[i], v[i], sum);
    for (int d = 1; d < 8; d *= 2) sum += shuffle_xor(sum, d);
    return sum;
}
// Returns the sum over a row's groups in all lanes of a warp.
__device__ inline float squares_of_row(const float* groups, u32 count) {
    float sum = 0.0f;
    for (u32 i = threadIdx.x % 32; i < count; i += 32) sum += groups[i];
    return warp_sum(sum);
}
// share: 1 / width.
__device__ inline float inverse_root(float squares, float share, float eps) { return rsqrtf(fmaf(squares, share, eps)); }

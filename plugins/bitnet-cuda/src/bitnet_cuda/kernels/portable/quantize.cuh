// Norm and int8 quantization of one row per block. Raw is a functor: raw(k, v) = the values of columns k..k+3 before the
// norm, 0 from `width` on; gamma is asked for before the kernels ahead have ended. A thread keeps its 4 * VECTORS values in registers, so that the row is read once.
// a = max(max|y|, floor), q = clip(round_half_even(y * (127 / a)), -128, 127), scale = a / 127: of the row (ABLOCK 0, floor
// 1e-5), or of each 32 columns, which eight neighbouring threads have (ABLOCK 32, floor 1e-20).
struct alignas(16) Four {
    float v[4];
};

// Columns k..k+3 of a row of `width` floats, 0 behind its end.
__device__ inline Four four_of(const float* row, u32 k, u32 width) {
    if (width % 4 == 0) return k < width ? *(const Four*)(row + k) : Four{{0.0f, 0.0f, 0.0f, 0.0f}};
    Four four;
    for (u32 i = 0; i < 4; i++) four.v[i] = k + i < width ? row[k + i] : 0.0f;
    return four;
}

// The largest |v| as bits: these order like the numbers, with Inf and NaN above all.
__device__ inline u32 largest_bits(const float* v) {
    u32 largest = 0;
    for (int i = 0; i < 4; i++) largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
    return largest;
}

// Four codes in a word; their sum is added to total.
__device__ inline u32 four_codes(const float* v, float factor, bool bad, int& total) {
    u32 packed = 0;
    for (int i = 0; i < 4; i++) {
        int code = bad ? 0 : (int)fminf(fmaxf(rintf(v[i] * factor), -128.0f), 127.0f);
        total += code;
        packed |= ((u32)code & 255u) << (8 * i);
    }
    return packed;
}

template <class Raw>
__device__ inline void quantize_row(Raw raw, const float* gamma, u32* q, float* scale, int* qsum, u32 row, u32 width,
                                    u32 stride, float eps) {
    __shared__ float scratch[GROUP / 32];
    __shared__ u32 bits[GROUP / 32];
    float v[VECTORS][4], squares = 0.0f;
    Four weights[VECTORS];
#pragma unroll
    for (int j = 0; NORM && j < VECTORS; j++) weights[j] = four_of(gamma, 4 * (threadIdx.x + j * GROUP), width);
    wait_for_previous();
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        raw(4 * (threadIdx.x + j * GROUP), v[j]);
        for (int i = 0; i < 4; i++) squares += v[j][i] * v[j][i];
    }
    bool bad = false;
    if (NORM) {
        squares = group_sum(squares, scratch);
        bad = not_finite(squares);
        float inverse = 1.0f / sqrtf(squares / (float)width + eps);
#pragma unroll
        for (int j = 0; j < VECTORS; j++)
            for (int i = 0; i < 4; i++) v[j][i] = v[j][i] * inverse * weights[j].v[i];
    }
    u32 largest = 0;
#pragma unroll
    for (int j = 0; j < VECTORS; j++) largest = max(largest, largest_bits(v[j]));
    for (int d = 16; d > 0; d >>= 1) largest = max(largest, shuffle_xor(largest, d));
    if (threadIdx.x % 32 == 0) bits[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int i = 0; i < GROUP / 32; i++) largest = max(largest, bits[i]);
    bad = bad || largest >= 0x7f800000u;
    u32 words = stride / 4;
#if ABLOCK
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        u32 word = threadIdx.x + j * GROUP, top = largest_bits(v[j]);
        for (int d = 1; d < 8; d *= 2) top = max(top, shuffle_xor(top, d));
        float a = fmaxf(__uint_as_float(top), 1e-20f);
        int total = 0;
        u32 packed = four_codes(v[j], 127.0f / a, bad, total);
        for (int d = 1; d < 8; d *= 2) total += shuffle_xor(total, d);
        if (word >= words) continue;
        q[(size_t)row * words + word] = packed;
        if (word % 8 != 0) continue;
        size_t at = ((size_t)row * words + word) / 8;
        scale[at] = bad ? quiet_nan() : a / 127.0f;
        qsum[at] = total;
    }
#else
    __shared__ int sums[GROUP / 32];
    float a = fmaxf(__uint_as_float(largest), 1e-5f), factor = 127.0f / a;
    int total = 0;
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        u32 word = threadIdx.x + j * GROUP, packed = four_codes(v[j], factor, bad, total);
        if (word < words) q[(size_t)row * words + word] = packed;
    }
    total = warp_sum_int(total);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x == 0) {
        total = 0;
        for (int i = 0; i < GROUP / 32; i++) total += sums[i];
        scale[row] = bad ? quiet_nan() : a / 127.0f;
        qsum[row] = total;
    }
#endif
}

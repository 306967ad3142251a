// Norm and int8 quantization of one row per block. Raw is a functor: raw(k, v) = the values of columns k..k+3 before the
// norm, 0 from `width` on. A thread keeps its 4 * VECTORS values in registers, so that the row is read once.
// a = max(max|y|, 1e-5), q = clip(round_half_even(y * (127 / a)), -128, 127), scale = a / 127.
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

template <class Raw>
__device__ inline void quantize_row(Raw raw, const float* gamma, u32* q, float* scale, int* qsum, u32 row, u32 width,
                                    u32 stride, float eps) {
    __shared__ float scratch[GROUP / 32];
    __shared__ u32 bits[GROUP / 32];
    __shared__ int sums[GROUP / 32];
    float v[VECTORS][4], squares = 0.0f;
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
        for (int j = 0; j < VECTORS; j++) {
            Four weights = four_of(gamma, 4 * (threadIdx.x + j * GROUP), width);
            for (int i = 0; i < 4; i++) v[j][i] = v[j][i] * inverse * weights.v[i];
        }
    }
    u32 largest = 0;  // of |y|, as bits: these order like the numbers, with Inf and NaN above all
#pragma unroll
    for (int j = 0; j < VECTORS; j++)
        for (int i = 0; i < 4; i++) largest = max(largest, __float_as_uint(v[j][i]) & 0x7fffffffu);
    for (int d = 16; d > 0; d >>= 1) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, d));
    if (threadIdx.x % 32 == 0) bits[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int i = 0; i < GROUP / 32; i++) largest = max(largest, bits[i]);
    bad = bad || largest >= 0x7f800000u;
    float a = fmaxf(__uint_as_float(largest), 1e-5f), factor = 127.0f / a;
    int total = 0;
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        u32 word = threadIdx.x + j * GROUP, packed = 0;
        for (int i = 0; i < 4; i++) {
            int code = bad ? 0 : (int)fminf(fmaxf(rintf(v[j][i] * factor), -128.0f), 127.0f);
            total += code;
            packed |= ((u32)code & 255u) << (8 * i);
        }
        if (word < stride / 4) q[(size_t)row * (stride / 4) + word] = packed;
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
}

// Norm and int8 quantization of one row per block. Raw is a functor: raw(k) = the value of column k before the norm.
// a = max(max|y|, 1e-5), q = clip(round_half_even(y * (127 / a)), -128, 127), scale = a / 127.
template <class Raw>
__device__ inline void quantize_row(Raw raw, const float* gamma, u32* q, float* scale, int* qsum, u32 row, u32 width,
                                    u32 stride, float eps) {
    __shared__ float scratch[GROUP / 32];
    float squares = 0.0f, bad = 0.0f;
    for (u32 k = threadIdx.x; k < width; k += GROUP) {
        float v = raw(k);
        squares += v * v;
        if (not_finite(v)) bad = 1.0f;
    }
    float inverse = 1.0f;
    if (NORM) {
        squares = group_sum(squares, scratch);
        if (not_finite(squares)) bad = 1.0f;
        inverse = 1.0f / sqrtf(squares / (float)width + eps);
    }
    float largest = 0.0f;
    for (u32 k = threadIdx.x; k < width; k += GROUP) {
        float y = NORM ? raw(k) * inverse * gamma[k] : raw(k);
        if (not_finite(y)) bad = 1.0f;
        largest = fmaxf(largest, fabsf(y));
    }
    bad = group_max(bad, scratch);
    float a = fmaxf(group_max(largest, scratch), 1e-5f), factor = 127.0f / a;
    int total = 0;
    for (u32 word = threadIdx.x; word < stride / 4; word += GROUP) {
        u32 packed = 0;
        for (u32 i = 0; i < 4; i++) {
            u32 k = 4 * word + i;
            if (k >= width || bad > 0.0f) continue;
            float y = NORM ? raw(k) * inverse * gamma[k] : raw(k);
            int code = (int)fminf(fmaxf(rintf(y * factor), -128.0f), 127.0f);
            total += code;
            packed |= ((u32)code & 255u) << (8 * i);
        }
        q[(size_t)row * (stride / 4) + word] = packed;
    }
    __shared__ int sums[GROUP / 32];
    total = warp_sum_int(total);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x == 0) {
        total = 0;
        for (int i = 0; i < GROUP / 32; i++) total += sums[i];
        scale[row] = bad > 0.0f ? quiet_nan() : a / 127.0f;
        qsum[row] = total;
    }
}

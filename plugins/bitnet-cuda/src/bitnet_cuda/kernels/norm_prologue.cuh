// Norm (NORM 1) and int8 quantization of one row of x[COLUMNS] by every block that multiplies it: each warp quantizes the
// columns that it multiplies, so the block meets only once, for the sum of squares and the largest value.
// As in quantize.cuh, but for a = max|x * gamma| / rms, which rounds once less than max|x / rms * gamma|.
struct Prologue {
    Floats gamma[STEPS][2], x[STEPS][2];

    // First of the four columns in [i][j]. Units are those of load_codes.
    __device__ static u32 column(int i, int j) {
        return 256 * (i * WARPS + threadIdx.x / 32) + 128 * j + 4 * (threadIdx.x % 32);
    }
    __device__ static Floats four(const float* p, u32 k) {
        if (COLUMNS % 4 == 0) return k < COLUMNS ? *(const Floats*)(p + k) : Floats{0.0f, 0.0f, 0.0f, 0.0f};
        return {k < COLUMNS ? p[k] : 0.0f, k + 1 < COLUMNS ? p[k + 1] : 0.0f, k + 2 < COLUMNS ? p[k + 2] : 0.0f,
                k + 3 < COLUMNS ? p[k + 3] : 0.0f};
    }
    __device__ void load_gamma(const float* from) {
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++)
            gamma[i / 2][i % 2] = NORM ? four(from, column(i / 2, i % 2)) : Floats{1.0f, 1.0f, 1.0f, 1.0f};
    }
    __device__ void load_x(const float* from) {
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) x[i / 2][i % 2] = four(from, column(i / 2, i % 2));
    }

    // q: shared i8[STEPS * WARPS * 256]; sums: shared, per warp, to be added after the next barrier. Returns the scale.
    __device__ float quantize(u32* q, int* sums, float eps) const {
        __shared__ float squares[WARPS], largest[WARPS];
        float square = 0.0f, top = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            Floats v = x[i / 2][i % 2], g = gamma[i / 2][i % 2];
            float values[4] = {v.x, v.y, v.z, v.w}, gammas[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                square += values[j] * values[j];
                float y = values[j] * gammas[j];
                top = fmaxf(top, not_finite(y) ? infinity() : fabsf(y));  // fmaxf drops NaN
            }
        }
        square = warp_sum(square);
        top = warp_max(top);
        u32 warp = threadIdx.x / 32;
        if (threadIdx.x % 32 == 0) {
            squares[warp] = square;
            largest[warp] = top;
        }
        __syncthreads();
        square = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            square += squares[i];
            top = fmaxf(top, largest[i]);
        }
        bool bad = not_finite(top) || (NORM && not_finite(square));
        float inverse = NORM ? 1.0f / sqrtf(square / (float)COLUMNS + eps) : 1.0f;
        float a = fmaxf(top * inverse, 1e-5f), factor = 127.0f / a;
        int total = 0;
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            Floats v = x[i / 2][i % 2], g = gamma[i / 2][i % 2];
            float values[4] = {v.x, v.y, v.z, v.w}, gammas[4] = {g.x, g.y, g.z, g.w};
            u32 packed = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float y = values[j] * inverse * gammas[j];
                int code = bad ? 0 : (int)fminf(fmaxf(rintf(y * factor), -128.0f), 127.0f);
                total += code;
                packed |= ((u32)code & 255u) << (8 * j);
            }
            q[column(i / 2, i % 2) / 4] = packed;
        }
        total = warp_sum_int(total);
        if (threadIdx.x % 32 == 0) sums[warp] = total;
        __syncwarp();
        return bad ? quiet_nan() : a / 127.0f;
    }
};

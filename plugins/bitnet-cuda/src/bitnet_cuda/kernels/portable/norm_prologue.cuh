// Norm (NORM 1) and int8 quantization of one row of x[COLUMNS], repeated by every block that multiplies it. Each warp
// quantizes the columns that it multiplies, so there is one block-wide reduction, of the sum of squares and the largest
// value.
// With y = x * gamma and m = max|y|, the root mean square rms cancels in the codes: round(y / rms * 127 / (m / rms)) =
// round(y * 127 / m), unless m / rms is below the floor of 1e-5. So only the scale, m / rms / 127, needs the square
// root, off the critical path.
struct Prologue {
    Floats gamma[STEPS][2];
    float y[STEPS][8];
    float square;

    // The first of the four columns in [i][j]. The units are those of load_codes.
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
        Floats x[2 * STEPS];
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) x[i] = four(from, column(i / 2, i % 2));
        square = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            Floats v = x[i], g = gamma[i / 2][i % 2];
            square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            float* to = y[i / 2] + 4 * (i % 2);
            to[0] = v.x * g.x, to[1] = v.y * g.y, to[2] = v.z * g.z, to[3] = v.w * g.w;
        }
    }

    // Returns the scale. q: in shared memory, i8[STEPS * WARPS * 256]; sums: in shared memory, per warp, to be added
    // after the next barrier.
    __device__ float quantize(u32* q, int* sums, float eps) const {
        __shared__ float squares[WARPS];
        __shared__ u32 largest[WARPS];
        u32 warp = threadIdx.x / 32, bits = 0;  // as integers, NaN is above Inf, and Inf above all numbers
#pragma unroll
        for (int i = 0; i < 8 * STEPS; i++) bits = max(bits, __float_as_uint(y[i / 8][i % 8]) & 0x7fffffffu);
        bits = warp_max_bits(bits);
        float all = warp_sum(square);
        if (threadIdx.x % 32 == 0) {
            squares[warp] = all;
            largest[warp] = bits;
        }
        __syncthreads();
        all = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            all += squares[i];
            bits = max(bits, largest[i]);
        }
        float top = __uint_as_float(bits), mean = all * (1.0f / COLUMNS) + eps;
        bool bad = not_finite(top) || (NORM && not_finite(all));
        bool low = NORM ? top * top < 1e-10f * mean : top < 1e-5f;
        float inverse = NORM ? rsqrtf(mean) : 1.0f;
        float factor = bad ? 0.0f : low ? 127.0f / 1e-5f * inverse : 127.0f * reciprocal(top);
        int total = 0;
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            u32 packed = nearest_bytes(y[i / 2] + 4 * (i % 2), factor);
            total = dot4(0x01010101u, packed, total);
            q[column(i / 2, i % 2) / 4] = packed;
        }
        total = warp_sum_int(total);
        if (threadIdx.x % 32 == 0) sums[warp] = total;
        sync_warp();
        return bad ? quiet_nan() : (low ? 1e-5f : top * inverse) * (1.0f / 127.0f);
    }

    // Quantizes each ABLOCK columns, which ABLOCK / 4 lanes hold: codes depend on no other warp, so there is no
    // block-wide reduction. factors: in shared memory, scales of 32 columns without the norm. shares: in shared memory,
    // per warp, for norm_of after the next barrier.
    __device__ void quantize_blocks(u32* q, float* factors, float* shares) const {
        float bad = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            const float* four = y[i / 2] + 4 * (i % 2);
            u32 bits = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) bits = max(bits, __float_as_uint(four[j]) & 0x7fffffffu);
            bits = neighbours_max_bits<ABLOCK / 4>(bits);
            if (bits >= 0x7f800000u) bad = quiet_nan();
            float top = fmaxf(__uint_as_float(bits), 1e-30f), factor = 127.0f * reciprocal(top);
            u32 packed = nearest_bytes(four, factor);
            q[column(i / 2, i % 2) / 4] = packed;
            if (threadIdx.x % 8 == 0) factors[column(i / 2, i % 2) / 32] = top * (1.0f / 127.0f);
        }
        float all = warp_sum(NORM ? square + bad : bad);
        if (threadIdx.x % 32 == 0) shares[threadIdx.x / 32] = all;
        sync_warp();
    }
    // Quantizes by blocks (ABLOCK 32 or 128), or the whole row (ABLOCK 0) and returns its scale. factors has 4 bytes
    // for each 32 columns.
    __device__ float quantized(u32* q, float* factors, float* shares, float eps) const {
        if (!ABLOCK) return quantize(q, (int*)factors, eps);
        quantize_blocks(q, factors, shares);
        return 1.0f;
    }
    // Returns the factor of every sum: NaN if the row has a value that is not finite.
    __device__ static float norm_of(const float* shares, float eps) {
        float all = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) all += shares[i];
        if (not_finite(all)) return quiet_nan();
        return NORM ? rsqrtf(all * (1.0f / COLUMNS) + eps) : 1.0f;
    }
};

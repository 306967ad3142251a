// H z over HADAMARD columns, four neighbouring columns per thread: H[i, j] = (-1)^popcount(i & j) / sqrt(HADAMARD).
// Butterflies of distance below 4 stay in a thread and those below 128 in a warp; the rest is a sum over the warps
// through shared memory.
#define HADAMARD_WARPS ((HADAMARD + 127) / 128)

// Returns -v if an odd number of the five bits is set.
__device__ inline float signed_by(float v, u32 bits) {
    bits ^= bits >> 4;
    bits ^= bits >> 2;
    bits ^= bits >> 1;
    return __uint_as_float(__float_as_uint(v) ^ bits << 31);
}

// exchange: in shared memory, [HADAMARD_WARPS * 32]. All threads must call this, also those past the last column.
__device__ inline void hadamard(float (&v)[4], Floats* exchange) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a, v[1] = b, v[2] = c, v[3] = d;
    if (HADAMARD > 2) v[0] = a + c, v[1] = b + d, v[2] = a - c, v[3] = b - d;
#pragma unroll
    for (int distance = 1; distance < 32 && 4 * distance < HADAMARD; distance *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float other = shuffle_xor(v[i], distance);
            v[i] = lane & distance ? other - v[i] : v[i] + other;
        }
    const float norm = 1.0f / sqrtf((float)HADAMARD);
    if (HADAMARD_WARPS > 1) {
        if (warp < HADAMARD_WARPS) exchange[threadIdx.x] = {v[0], v[1], v[2], v[3]};
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = 0.0f;
#pragma unroll 8
        for (u32 from = 0; from < HADAMARD_WARPS; from++) {
            Floats its = exchange[32 * from + lane];
            u32 bits = from & warp;
            v[0] += signed_by(its.x, bits), v[1] += signed_by(its.y, bits);
            v[2] += signed_by(its.z, bits), v[3] += signed_by(its.w, bits);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] *= norm;
}

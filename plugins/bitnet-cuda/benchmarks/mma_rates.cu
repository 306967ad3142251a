// The combined cost of the products of one warp (mma.sync) and the multiplications of their results: clocks of a
// scheduler for a step of 16 x 8 x 32, at 1.98 GHz. Results are read one step after their product was issued; a warp
// has eight steps in flight.
//   nvcc -O3 -std=c++17 -arch=sm_90 -o mma_rates mma_rates.cu && ./mma_rates
#include <cstdint>
#include <cstdio>
#include <cuda_runtime.h>

typedef uint32_t u32;
constexpr int STEPS = 8, ROUNDS = 2000;
enum What { IN_PLACE, FROM_BIAS, HALVES_IN_PLACE, HALVES };  // sums that accumulate; that start from a constant; two f16 products instead of one of bytes

__device__ inline void bytes(int* d, const u32* a, u32 b0, u32 b1, const int* c) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
__device__ inline void halves(float* d, const u32* a, u32 b0, u32 b1, const float* c) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// scaled: multiplications of each sum; the first reads it. base: the start of sums of bytes.
template <What what, int scaled>
__global__ void __launch_bounds__(512) steps(float* out, u32 seed, int base, float scale) {
    u32 a[4][4], b[STEPS][2];  // all different in each round: the compiler would merge equal products
    for (int i = 0; i < 16; i++) a[i / 4][i % 4] = (seed * (i + 1) + threadIdx.x * 77) & 0x01010101u;
    for (int i = 0; i < STEPS * 2; i++) b[i / 2][i % 2] = (seed + i) * 0x9e3779b9u ^ threadIdx.x * 0x01030507u;
    int start[4] = {base, base, base, base}, d[2][STEPS][4] = {};
    float zero[4] = {}, h[2][STEPS][4] = {}, acc[STEPS][4] = {};
    for (int round = 0; round < ROUNDS; round++)
#pragma unroll
        for (int now = 0; now < 2; now++) {
#pragma unroll
            for (int n = 0; n < STEPS; n++) {
                if (what == IN_PLACE) bytes(d[0][n], a[n % 4], b[n][0] + 2 * round + now, b[n][1], d[0][n]);
                if (what == FROM_BIAS) bytes(d[now][n], a[n % 4], b[n][0] + 2 * round + now, b[n][1], start);
                int to = what == HALVES ? now : 0;
                if (what >= HALVES_IN_PLACE) halves(h[to][n], a[n % 4], b[n][0] + 2 * round + now, b[n][1], what == HALVES ? zero : h[to][n]);
                if (what >= HALVES_IN_PLACE) halves(h[to][n], a[(n + 1) % 4], b[n][0] + 2 * round + now, b[n][1], h[to][n]);
            }
#pragma unroll
            for (int i = 0; i < STEPS * 4 && scaled; i++) {
                float sum = what == HALVES ? h[1 - now][i / 4][i % 4] : __int_as_float(d[1 - now][i / 4][i % 4]), part = sum;
                if (scaled == 2) asm volatile("fma.rn.f32 %0, %1, %2, %3;" : "=f"(part) : "f"(sum), "f"(scale), "f"(-scale));
                asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(acc[i / 4][i % 4]) : "f"(part), "f"(scale));
            }
        }
    float sum = 0;
    for (int i = 0; i < STEPS * 4; i++) sum += acc[i / 4][i % 4] + d[0][i / 4][i % 4] + h[0][i / 4][i % 4] + d[1][i / 4][i % 4] + h[1][i / 4][i % 4];
    if (sum == 12345.678f) *out = sum;
}

template <What what, int scaled>
void time(const char* name, float* out, int base = 0, float scale = 1e-6f) {
    cudaEvent_t begin, end;
    cudaEventCreate(&begin), cudaEventCreate(&end);
    int multiprocessors;
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
    float best = 1e9f, ms;
    for (int i = 0; i < 4; i++) {
        cudaEventRecord(begin), steps<what, scaled><<<multiprocessors, 512>>>(out, 12345 + i, base, scale), cudaEventRecord(end);
        cudaEventSynchronize(end), cudaEventElapsedTime(&ms, begin, end);
        best = ms < best ? ms : best;
    }
    printf("%-56s %6.2f clocks a step  %s\n", name, best * 1.98e6 / (ROUNDS * 2.0 * STEPS * 4), cudaGetErrorString(cudaGetLastError()));
}

int main() {
    float* out;
    cudaMalloc(&out, 4);
    time<IN_PLACE, 0>("bytes, sums that go on", out);
    time<FROM_BIAS, 1>("bytes from 1.5 * 2^23, a multiplication a sum", out, 0x4b400000);
    time<FROM_BIAS, 1>("bytes from 2^18, the bits as a number of 2^-149", out, 1 << 18, 0x1p80f);
    time<FROM_BIAS, 2>("bytes from 1.5 * 2^23, two multiplications a sum", out, 0x4b400000);
    time<HALVES_IN_PLACE, 0>("two of f16, sums that go on", out);
    time<HALVES, 1>("two of f16, a multiplication a sum", out);
    time<HALVES, 2>("two of f16, two multiplications a sum", out);
}

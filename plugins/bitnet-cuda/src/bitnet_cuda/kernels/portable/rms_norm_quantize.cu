// y[T,K] = x / sqrt(mean(x^2) + eps) * gamma (NORM 1) or x (NORM 0), then int8 codes: q[T,stride], scale and qsum [T]
// or [T,stride/32]. One block per row (quantize.cuh).
#include "prelude.cuh"
#include "quantize.cuh"

struct Plain {
    const float* x;
    u32 width;
    typedef Four Loaded;
    __device__ Four load(u32 k) const { return four_of(x, k, width); }
    __device__ static void values(const Four& four, float* v) {
        for (int i = 0; i < 4; i++) v[i] = four.v[i];
    }
};

KERNEL rms_norm_quantize(const float* x, const float* gamma, u32* q, float* scale, int* qsum, u32 rows, u32 width,
                         u32 stride, float eps) {
    if (!LATE) let_next_start();
    u32 row = blockIdx.x;
    quantize_row(Plain{x + (size_t)row * width, width}, gamma, q, scale, qsum, row, width, stride, eps);
}

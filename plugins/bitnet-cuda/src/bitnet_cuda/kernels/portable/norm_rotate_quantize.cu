// y[t] = x[t] / sqrt(mean(x[t]^2) + eps) * gamma (NORM 1) or x[t] (NORM 0), stored as f32 if KEEP is 1; then rotated
// and quantized (rotate_quantize.cuh). Every block of a row computes the row's sum of squares.
#include "prelude.cuh"
#include "rotate_quantize.cuh"

KERNEL norm_rotate_quantize(const float* x, const float* gamma, const float* signs, float* y, u32* q, float* scale, int* qsum,
                            u32 rows, u32 width, u32 block, float eps, const u8* ahead, u32 ahead_bytes) {
    __shared__ float scratch[GROUP / 32];
    u32 row = blockIdx.y;
    const float* from = x + (size_t)row * width;
    let_next_start();
    fetch_ahead(ahead, ahead_bytes);
    Rotated rotated(signs, q, scale, qsum, row, width);
    Floats early = NORM ? rotated.at(gamma) : Floats{};
    wait_for_previous();
    float inverse = 1.0f;
    if (NORM) {
        float squares = 0.0f;
#pragma unroll 8
        for (u32 k = 4 * threadIdx.x; k < width; k += 4 * GROUP) {
            Floats v = *(const Floats*)(from + k);
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
        squares = group_sum(squares, scratch);
        inverse = not_finite(squares) ? quiet_nan() : 1.0f / sqrtf(squares / (float)width + eps);
    }
    rotated.each([=](u32 column, float(&v)[4]) {
        Floats four = *(const Floats*)(from + column);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
        if (NORM) {
            Floats weight = early;
            if (column != Rotated::first()) weight = *(const Floats*)(gamma + column);
            v[0] *= inverse * weight.x, v[1] *= inverse * weight.y, v[2] *= inverse * weight.z, v[3] *= inverse * weight.w;
        }
        if (KEEP) *(Floats*)(y + (size_t)row * width + column) = {v[0], v[1], v[2], v[3]};
    });
}

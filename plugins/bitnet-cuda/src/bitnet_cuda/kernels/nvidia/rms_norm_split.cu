// rms_norm whose rows are also split for approximate logits (joined_head.py): y[l] = x[index[l]] / sqrt(mean(x[index[l]]^2)
// + eps) * gamma; split: split_rows.cuh. One block per row of width columns; a thread holds EACH columns.
#include "prelude.cuh"
#include "bounds.cuh"
#define SPAN_T SPLIT_T  // SPAN_T is a constant of kernels with tensor maps alone
#include "split_rows.cuh"

KERNEL rms_norm(const float* x, const int* index, const float* gamma, float* y, Words* split, u32 rows, u32 width, float eps) {
    __shared__ float scratch[GROUP / 32];
    __shared__ u32 tops[GROUP / 32];
    u32 row = blockIdx.x, chunks = (width + 127) / 128, span = row / SPAN_T, token = row % SPAN_T;
    float v[EACH], weight[EACH], squares = 0.0f, length = 0.0f;
    let_next_start();
    const float* in = x + (size_t)index[row] * width;
#pragma unroll
    for (int i = 0; i < EACH; i++) weight[i] = gamma[min(threadIdx.x + i * GROUP, width - 1)];
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < EACH; i++) v[i] = in[min(threadIdx.x + i * GROUP, width - 1)];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (threadIdx.x + i * GROUP < width) squares += v[i] * v[i];
    squares = group_sum(squares, scratch);
    float inverse = not_finite(squares) ? quiet_nan() : 1.0f / sqrtf(squares / (float)width + eps);
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (threadIdx.x + i * GROUP >= width) continue;
        v[i] = v[i] * inverse * weight[i];
        y[(size_t)row * width + threadIdx.x + i * GROUP] = v[i];
        length += v[i] * v[i];
        largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
    }
    largest = warp_max_bits(largest);
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = largest;
    length = group_sum(length, scratch);
    for (int i = 0; i < GROUP / 32; i++) largest = max(largest, tops[i]);
    u32 exponent = exponent_for(largest);
    float factor = __uint_as_float(exponent << 23);
    u8* planes = (u8*)(split + (size_t)span * chunks * CHUNK);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        u32 k = threadIdx.x + i * GROUP, place = (k / 16 % 8 ^ token % 8) * 16 + k % 16, of = digits(v[i] * factor);
        if (k >= width) continue;
#pragma unroll
        for (int p = 0; p < 3; p++) planes[((size_t)k / 128 * (3 * SPAN_T) + p * SPAN_T + token) * 128 + place] = (u8)(of >> (16 - 8 * p));
    }
    Words* behind = split + (size_t)(rows + SPAN_T - 1) / SPAN_T * chunks * CHUNK;
    if (threadIdx.x == 0) ((u32*)behind)[2 * row] = exponent, ((float*)behind)[2 * row + 1] = length_from(length);
}

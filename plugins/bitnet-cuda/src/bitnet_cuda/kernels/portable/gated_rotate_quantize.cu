// gated_rms_norm of x[T, n_heads * head_dim], rotated and quantized (rotate_quantize.cuh). head_dim / 4 neighbouring
// threads hold the columns of a head; with a norm (NORM 1) they belong to one warp.
#include "prelude.cuh"
#include "activation.cuh"
#include "rotate_quantize.cuh"

// Sum over the head that holds the columns v. HEAD_DIM is a power of two, at most 128.
__device__ inline float inverse_root(const float (&v)[4], float eps) {
    float squares = v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3];
    for (int d = 1; 4 * d < HEAD_DIM; d *= 2) squares += shuffle_xor(squares, d);
    return not_finite(squares) ? quiet_nan() : 1.0f / sqrtf(squares / (float)HEAD_DIM + eps);
}

KERNEL gated_rotate_quantize(const float* x, const float* gate, const float* gamma, const float* signs, u32* q, float* scale,
                             int* qsum, u32 rows, u32 n_heads, u32 head_dim, u32 groups, u32 block, float eps,
                             const u8* ahead, u32 ahead_bytes) {
    u32 row = blockIdx.y, width = n_heads * HEAD_DIM, per_group = n_heads / groups;
    let_next_start();
    fetch_ahead(ahead, ahead_bytes);
    Rotated rotated(signs, q, scale, qsum, row, width);
    Floats weight = NORM ? *(const Floats*)(gamma + 4 * threadIdx.x % HEAD_DIM) : Floats{};  // HADAMARD is a multiple of HEAD_DIM
    wait_for_previous();
    rotated.each([=](u32 column, float(&v)[4]) {
        u32 to = column / HEAD_DIM, head = to % per_group * groups + to / per_group;
        size_t at = (size_t)row * width + head * HEAD_DIM + column % HEAD_DIM;
        Floats four = *(const Floats*)(x + at), g = *(const Floats*)(gate + at);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
        if (NORM) {
            float inverse = inverse_root(v, eps);
            v[0] *= inverse * weight.x, v[1] *= inverse * weight.y, v[2] *= inverse * weight.z, v[3] *= inverse * weight.w;
        }
        v[0] *= activation(g.x), v[1] *= activation(g.y), v[2] *= activation(g.z), v[3] *= activation(g.w);
    });
}

// m[T,F] = act(gate) * up in f32, gate_up[T,2F] = [gate | up]; act = max(g,0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT 1);
// then norm with gamma (NORM 1) and int8 per row: q[T,stride], scale[T], qsum[T]. One block per row.
#include "prelude.cuh"
#include "quantize.cuh"

struct Gated {
    const float *gate, *up;
    __device__ float operator()(u32 k) const {
        float g = gate[k];
        if (is_nan(g)) return g;  // fmaxf drops it
        float r = fmaxf(g, 0.0f);
        return (ACT == 0 ? r * r : g / (1.0f + expf(-g))) * up[k];
    }
};

KERNEL glu_norm_quantize(const float* gate_up, const float* gamma, u32* q, float* scale, int* qsum, u32 rows, u32 width,
                         u32 stride, float eps) {
    u32 row = blockIdx.x;
    const float* gate = gate_up + (size_t)row * 2 * width;
    quantize_row(Gated{gate, gate + width}, gamma, q, scale, qsum, row, width, stride, eps);
}

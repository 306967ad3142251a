// m[T,F] = act(gate) * up in f32, gate_up[T,2F] = [gate | up]; act(g) = max(g, 0)^2 (ACT 0) or g / (1 + exp(-g)) (ACT
// 1). Then norm with gamma (NORM 1) and int8 codes: q[T,stride], scale and qsum [T] or [T,stride/32]. One block per
// row.
#include "prelude.cuh"
#include "quantize.cuh"

struct Gated {
    const float *gate, *up;
    u32 width;
    struct Loaded {
        Four g, u;
    };
    __device__ Loaded load(u32 k) const { return {four_of(gate, k, width), four_of(up, k, width)}; }
    __device__ static void values(const Loaded& from, float* v) {
        Four g = from.g, u = from.u;
        for (int i = 0; i < 4; i++) {
            float r = is_nan(g.v[i]) ? g.v[i] : fmaxf(g.v[i], 0.0f);  // fmaxf drops NaN
            v[i] = (ACT == 0 ? r * r : quotient(g.v[i], 1.0f + expf(-g.v[i]))) * u.v[i];
        }
    }
};

KERNEL glu_norm_quantize(const float* gate_up, const float* gamma, u32* q, float* scale, int* qsum, u32 rows, u32 width,
                         u32 stride, float eps) {
    if (!LATE) let_next_start();
    u32 row = blockIdx.x;
    const float* gate = gate_up + (size_t)row * 2 * width;
    quantize_row(Gated{gate, gate + width, width}, gamma, q, scale, qsum, row, width, stride, eps);
}

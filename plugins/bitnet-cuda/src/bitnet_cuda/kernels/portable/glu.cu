// m[T,F] = act(gate) * up, gate_up[T,2F] = [gate | up] (activation.cuh). One block per row.
#include "prelude.cuh"
#include "activation.cuh"

KERNEL glu(const float* gate_up, float* m, u32 rows, u32 width) {
    let_next_start();
    wait_for_previous();
    const float* gate = gate_up + (size_t)blockIdx.x * 2 * width;
    float* out = m + (size_t)blockIdx.x * width;
#pragma unroll 4
    for (u32 k = threadIdx.x; k < width; k += GROUP) out[k] = activation(gate[k]) * gate[width + k];
}

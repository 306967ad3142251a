// act(gate) * up of gate_up[T,2F] = [gate | up] (activation.cuh), rotated and quantized (rotate_quantize.cuh).
#include "prelude.cuh"
#include "activation.cuh"
#include "rotate_quantize.cuh"

KERNEL glu_rotate_quantize(const float* gate_up, const float* signs, u32* q, float* scale, int* qsum, u32 rows, u32 width,
                           u32 block, const u8* ahead, u32 ahead_bytes) {
    u32 row = blockIdx.y;
    const float *gate = gate_up + (size_t)row * 2 * width, *up = gate + width;
    let_next_start();
    fetch_ahead(ahead, ahead_bytes);
    Rotated rotated(signs, q, scale, qsum, row, width);
    wait_for_previous();
    rotated.each([=](u32 column, float(&v)[4]) {
        Floats g = *(const Floats*)(gate + column), u = *(const Floats*)(up + column);
        v[0] = activation(g.x) * u.x, v[1] = activation(g.y) * u.y, v[2] = activation(g.z) * u.z, v[3] = activation(g.w) * u.w;
    });
}

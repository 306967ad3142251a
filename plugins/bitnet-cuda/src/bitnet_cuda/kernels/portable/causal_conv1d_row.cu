// causal_conv1d of one row. A thread computes one channel from its TAPS inputs; all but the newest are loaded before
// the preceding kernels have finished.
#include "prelude.cuh"

#define ACT 1
#include "activation.cuh"

KERNEL causal_conv1d(const float* x, const Row* step, const float* weight, float* state, float* y, u32 rows, u32 channels,
                     u32 taps) {
    u32 channel = blockIdx.x * TILE_N + threadIdx.x, mine = min(channel, channels - 1);
    Row now = step[0];
    float inputs[TAPS], weights[TAPS], *own = state + (size_t)max(now.sequence, 0) * (TAPS - 1) * channels + mine;
    let_next_start();
#pragma unroll
    for (u32 j = 0; j < TAPS; j++) weights[j] = weight[(size_t)mine * TAPS + j];
#pragma unroll
    for (u32 j = 0; j + 1 < TAPS; j++) inputs[j] = now.position > 0 ? own[(size_t)j * channels] : 0.0f;
    wait_for_previous();
    if (channel >= channels) return;
    inputs[TAPS - 1] = x[channel];
    float total = 0.0f;
#pragma unroll
    for (u32 j = 0; j < TAPS; j++) total += weights[j] * inputs[j];
    y[channel] = now.position < 0 ? 0.0f : activation(total);
    if (now.position < 0) return;
#pragma unroll
    for (u32 j = 0; j + 1 < TAPS; j++) own[(size_t)j * channels] = inputs[j + 1];
}

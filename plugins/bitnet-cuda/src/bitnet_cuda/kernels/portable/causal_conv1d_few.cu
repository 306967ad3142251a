// causal_conv1d of up to ROWS rows. A thread computes one channel of all rows, with its last TAPS inputs in registers. The
// states of all sequences of the step are loaded before the preceding kernels have finished.
#include "prelude.cuh"

#define ACT 1
#include "activation.cuh"

// Returns whether row t is the first, or the last, of its sequence in this step.
__device__ inline bool first_row(const Row* step, u32 t) {
    return t == 0 || step[t - 1].position < 0 || step[t - 1].sequence != step[t].sequence;
}
__device__ inline bool last_row(const Row* step, u32 t, u32 rows) {
    return t + 1 == rows || step[t + 1].position < 0 || step[t + 1].sequence != step[t].sequence;
}

KERNEL causal_conv1d(const float* x, const Row* step, const float* weight, float* state, float* y, u32 rows, u32 channels,
                     u32 taps) {
    u32 channel = blockIdx.x * TILE_N + threadIdx.x, mine = min(channel, channels - 1);
    float weights[TAPS], states[ROWS][TAPS - 1], inputs[TAPS];
    auto state_of = [=](const Row& row) { return state + (size_t)row.sequence * (TAPS - 1) * channels + mine; };
    let_next_start();
#pragma unroll
    for (u32 j = 0; j < TAPS; j++) weights[j] = weight[(size_t)mine * TAPS + j];
#pragma unroll
    for (u32 t = 0; t < ROWS; t++) {
        bool read = t < rows && step[t].position > 0 && first_row(step, t);
#pragma unroll
        for (u32 j = 0; j + 1 < TAPS; j++) states[t][j] = read ? state_of(step[t])[(size_t)j * channels] : 0.0f;
    }
    wait_for_previous();
    if (channel >= channels) return;
    float newest[ROWS];
#pragma unroll
    for (u32 t = 0; t < ROWS; t++) newest[t] = t < rows ? x[(size_t)t * channels + channel] : 0.0f;
#pragma unroll
    for (u32 t = 0; t < ROWS; t++) {
        if (t >= rows) break;
        Row row = step[t];
        bool first = first_row(step, t);
#pragma unroll
        for (u32 j = 0; j + 1 < TAPS; j++) inputs[j] = first ? states[t][j] : inputs[j + 1];
        inputs[TAPS - 1] = newest[t];
        float total = 0.0f;
#pragma unroll
        for (u32 j = 0; j < TAPS; j++) total += weights[j] * inputs[j];
        y[(size_t)t * channels + channel] = row.position < 0 ? 0.0f : activation(total);
        if (row.position < 0 || !last_row(step, t, rows)) continue;
#pragma unroll
        for (u32 j = 0; j + 1 < TAPS; j++) state_of(row)[(size_t)j * channels] = inputs[j + 1];
    }
}

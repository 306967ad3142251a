// y[t,c] = silu(sum_j weight[c,j] x[t - taps + 1 + j, c]) over the inputs of the row's own sequence: earlier rows of
// the step, before them state[sequence, taps - 1, c], and zeros before position 0. Then the last taps - 1 inputs are
// stored in the state.
// A block computes TILE_N channels of all rows, which it divides into strips. Every strip reads the states before any
// strip writes one.
#include "prelude.cuh"

#define ACT 1
#include "activation.cuh"

struct Inputs {
    const float *x, *state;
    const Row* step;
    u32 channels, channel, taps;

    // The number of rows right before row t that belong to its sequence, at most taps - 1.
    __device__ u32 behind(u32 t) const {
        u32 count = 0;
        while (count + 1 < taps && t > count && step[t - count - 1].sequence == step[t].sequence && step[t - count - 1].position >= 0) count++;
        return count;
    }
    // The input `back` rows before row t, which has `behind` earlier rows in this step.
    __device__ float at(u32 t, u32 back, u32 behind) const {
        if (back <= behind) return x[(size_t)(t - back) * channels + channel];
        if (step[t].position == (int)behind) return 0.0f;
        return state[((size_t)step[t].sequence * (taps - 1) + taps - 1 - (back - behind)) * channels + channel];
    }
    // Returns whether row t is the last of its sequence in this step.
    __device__ bool last(u32 t, u32 rows) const {
        return t + 1 == rows || step[t + 1].position < 0 || step[t + 1].sequence != step[t].sequence;
    }
};

KERNEL causal_conv1d(const float* x, const Row* step, const float* weight, float* state, float* y, u32 rows, u32 channels,
                     u32 taps) {
    u32 channel = blockIdx.x * TILE_N + threadIdx.x % TILE_N, strips = GROUP / TILE_N;
    u32 strip = (rows + strips - 1) / strips, first = threadIdx.x / TILE_N * strip, end = min(first + strip, rows);
    bool mine = channel < channels;
    Inputs inputs = {x, state, step, channels, min(channel, channels - 1), taps};
    let_next_start();
    wait_for_previous();
    for (u32 t = first; mine && t < end; t++) {
        float total = 0.0f;
        u32 behind = inputs.behind(t), used = step[t].position >= 0 ? taps : 0;
#pragma unroll 4
        for (u32 j = 0; j < used; j++) total += weight[(size_t)channel * taps + j] * inputs.at(t, taps - 1 - j, behind);
        y[(size_t)t * channels + channel] = activation(total);
    }
    __syncthreads();
    for (u32 t = first; mine && t < end; t++) {
        if (step[t].position < 0 || !inputs.last(t, rows)) continue;
        // oldest first, so that no value is overwritten before it is read
        float* to = state + (size_t)step[t].sequence * (taps - 1) * channels + channel;
        u32 behind = inputs.behind(t);
        for (u32 j = 0; j + 1 < taps; j++) to[(size_t)j * channels] = inputs.at(t, taps - 2 - j, behind);
    }
}

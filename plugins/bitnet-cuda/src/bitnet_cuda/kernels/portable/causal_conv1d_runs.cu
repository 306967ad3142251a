// causal_conv1d of few rows, most of them in sequences of their own. A thread computes GROUP channels, one each, of
// every SHARES-th run, where SHARES = GROUP / TILE_N blocks share the runs. It holds the last TAPS inputs; those from
// before the step are loaded before the preceding kernels have finished, for its first run.
#include "prelude.cuh"

#define ACT 1
#include "activation.cuh"
#include "runs.cuh"

#define AHEAD 4  // rows of a run whose inputs are loaded at once

struct Channel {
    const float* x;
    float* y;
    const Row* step;
    u32 rows, channels;
    float weights[TAPS], inputs[TAPS];

    __device__ float output() const {
        float total = 0.0f;
#pragma unroll
        for (u32 j = 0; j < TAPS; j++) total += weights[j] * inputs[j];
        return activation(total);
    }
    // Computes the rows of the run that begins with row t.
    __device__ void run(u32 t) {
        for (bool more = true; more; t += AHEAD) {
            float newest[AHEAD];
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) newest[i] = x[(size_t)min(t + i, rows - 1) * channels];
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
                if (!more) break;
                inputs[TAPS - 1] = newest[i];
                y[(size_t)(t + i) * channels] = output();
#pragma unroll
                for (u32 j = 0; j + 1 < TAPS; j++) inputs[j] = inputs[j + 1];
                more = !run_ends(step, t + i, rows);
            }
        }
    }
};

KERNEL causal_conv1d(const float* x, const Row* step, const float* weight, float* state, float* y, u32 rows, u32 channels,
                     u32 taps) {
    u32 blocks = (channels + GROUP - 1) / GROUP, share = blockIdx.x / blocks, shares = gridDim.x / blocks;
    u32 channel = blockIdx.x % blocks * GROUP + threadIdx.x, mine = min(channel, channels - 1);
    let_next_start();
    if (share >= shares) return;
    Channel own = {x + mine, y + mine, step, rows, channels};
#pragma unroll
    for (u32 j = 0; j < TAPS; j++) own.weights[j] = weight[(size_t)mine * TAPS + j];
    for (u32 t = share; t < rows; t += shares) {
        Row first = step[t];
        float* before = state + (size_t)max(first.sequence, 0) * (TAPS - 1) * channels + mine;
        bool begins = run_begins(step, t);
#pragma unroll
        for (u32 j = 0; j + 1 < TAPS; j++) own.inputs[j] = begins && first.position > 0 ? before[(size_t)j * channels] : 0.0f;
        if (t == share) wait_for_previous();
        if (!begins || channel >= channels) continue;
        if (first.position < 0) {
            own.y[(size_t)t * channels] = 0.0f;
            continue;
        }
        own.run(t);
#pragma unroll
        for (u32 j = 0; j + 1 < TAPS; j++) before[(size_t)j * channels] = own.inputs[j];
    }
}

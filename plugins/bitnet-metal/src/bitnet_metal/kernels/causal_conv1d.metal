// y[t, c] = silu(sum_j weight[c, j] * x[t - taps + 1 + j, c]), silu(a) = a / (1 + exp(-a)), over the inputs of the
// row's own sequence: earlier rows of the step, before them state[sequence], oldest first, and zeros before position 0.
// Then the last taps - 1 inputs are stored in the state. Rows with position < 0 produce zeros. A threadgroup has TILE_N
// channels of all rows, divided among GROUP / TILE_N strips; all strips read the states before any writes one.
// x, y f32[rows, channels]; step i32[rows, 4]; weight f32[channels, taps]; state f32[sequences, taps - 1, channels].
struct Inputs {
    device const float *x;
    device const int4 *step;
    device float *state;
    uint channels;
    uint channel;
    uint taps;

    // Returns the number of rows right before row t that belong to its sequence, at most taps - 1.
    uint behind(uint t) const {
        uint count = 0;
        while (count + 1 < taps && t > count && step[t - count - 1].w == step[t].w && step[t - count - 1].y >= 0) count++;
        return count;
    }
    // Returns the index of an input in the state of row t's sequence.
    uint kept(uint t, uint j) const { return (uint(step[t].w) * (taps - 1) + j) * channels + channel; }
    // Returns the input `back` rows before row t, which has `near` earlier rows in this step.
    float at(uint t, uint back, uint near) const {
        if (back <= near) return x[(t - back) * channels + channel];
        return step[t].y == int(near) ? 0.0f : state[kept(t, taps - 1 + near - back)];
    }
};

kernel void causal_conv1d(device const float *x [[buffer(0)]], device const int4 *step [[buffer(1)]],
                          device const float *weight [[buffer(2)]], device float *state [[buffer(3)]],
                          device float *y [[buffer(4)]], constant Params &p [[buffer(5)]],
                          uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    uint channel = group.x * TILE_N + tid % TILE_N, strip = (p.rows * TILE_N + GROUP - 1) / GROUP;
    uint first = tid / TILE_N * strip, end = channel < p.channels ? min(first + strip, p.rows) : 0;
    Inputs inputs = {x, step, state, p.channels, channel, p.taps};
    for (uint t = first; t < end; t++) {
        uint near = inputs.behind(t), used = step[t].y >= 0 ? p.taps : 0;
        float total = 0.0f;
        for (uint j = 0; j < used; j++) total += weight[channel * p.taps + j] * inputs.at(t, p.taps - 1 - j, near);
        y[t * p.channels + channel] = total / (1.0f + exp(-total));
    }
    threadgroup_barrier(mem_flags::mem_device);
    for (uint t = first; t < end; t++) {
        bool last = t + 1 == p.rows || step[t + 1].y < 0 || step[t + 1].w != step[t].w;
        if (!last || step[t].y < 0) continue;
        uint near = inputs.behind(t);
        // Oldest first, so that no element is overwritten before it is read.
        for (uint j = 0; j + 1 < p.taps; j++) state[inputs.kept(t, j)] = inputs.at(t, p.taps - 2 - j, near);
    }
}

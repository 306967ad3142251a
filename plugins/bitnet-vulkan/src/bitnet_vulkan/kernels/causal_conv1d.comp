#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// y[t, c] = silu(sum_j weight[c, j] * x[t - taps + 1 + j, c]), silu(a) = a / (1 + exp(-a)), over the inputs of the
// row's own sequence: earlier rows of the step, before them state[sequence], oldest first, and zeros before position 0.
// Then the last taps - 1 inputs are stored in the state. Rows with position < 0 produce zeros.
// x, y f32[rows, channels]; weight f32[channels, taps]; state f32[sequences, taps - 1, channels]. One workgroup for
// TILE_N channels of all rows, divided among GROUP / TILE_N strips; all strips read the states before any writes one.
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 2) readonly buffer Weight { float weight[]; };
layout(std430, binding = 3) buffer State { float state[]; };
layout(std430, binding = 4) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, channels, taps; } p;

uint channel;

uint state_at(uint t, uint j) { return (uint(step_[t].w) * (p.taps - 1) + j) * p.channels + channel; }

// Returns the number of rows right before row t that belong to its sequence, at most taps - 1.
uint rows_behind(uint t) {
    uint count = 0;
    while (count + 1 < p.taps && t > count && step_[t - count - 1].w == step_[t].w && step_[t - count - 1].y >= 0) count++;
    return count;
}

// Returns the input `back` rows before row t, which has `behind` earlier rows in this step.
float input_of(uint t, uint back, uint behind) {
    if (back <= behind) return x[(t - back) * p.channels + channel];
    if (step_[t].y == int(behind)) return 0.0;
    return state[state_at(t, p.taps - 1 + behind - back)];
}

void main() {
    uint strip = (p.rows * TILE_N + GROUP - 1) / GROUP, first = LID / TILE_N * strip;
    channel = gl_WorkGroupID.x * TILE_N + LID % TILE_N;
    uint end = channel < p.channels ? min(first + strip, p.rows) : 0;
    for (uint t = first; t < end; t++) {
        uint behind = rows_behind(t), used = step_[t].y >= 0 ? p.taps : 0;
        float total = 0.0;
        for (uint j = 0; j < used; j++) total += weight[channel * p.taps + j] * input_of(t, p.taps - 1 - j, behind);
        y[t * p.channels + channel] = total / (1.0 + exp(-total));
    }
    barrier();
    for (uint t = first; t < end; t++) {
        bool last = t + 1 == p.rows || step_[t + 1].y < 0 || step_[t + 1].w != step_[t].w;
        if (!last || step_[t].y < 0) continue;
        uint behind = rows_behind(t);
        // Oldest first, so that no element is overwritten before it is read.
        for (uint j = 0; j + 1 < p.taps; j++) state[state_at(t, j)] = input_of(t, p.taps - 2 - j, behind);
    }
}

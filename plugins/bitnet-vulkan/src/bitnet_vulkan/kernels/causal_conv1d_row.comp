#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// causal_conv1d of one row (causal_conv1d.comp): y[c] = silu(sum_j weight[c, j] * x_j[c]) with the taps - 1 inputs of
// state[sequence] and then x, zeros in place of the state at position 0. A row with position < 0 produces zeros and
// leaves the state unchanged. BATCH is the number of taps: all inputs of a channel are loaded at once. One invocation
// per channel.
layout(std430, binding = 0) readonly buffer X { float x[]; };
layout(std430, binding = 1) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 2) readonly buffer Weight { float weight[]; };
layout(std430, binding = 3) buffer State { float state[]; };
layout(std430, binding = 4) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Params { uint rows, channels, taps; } p;

void main() {
    uint channel = gl_WorkGroupID.x * GROUP + LID;
    if (channel >= p.channels) return;
    float weights[BATCH], inputs[BATCH];
    [[unroll]] for (uint j = 0; j < BATCH; j++) weights[j] = weight[channel * BATCH + j];
    inputs[BATCH - 1] = x[channel];
    int position = step_[0].y;
    uint first = uint(max(step_[0].w, 0)) * (BATCH - 1) * p.channels + channel;
    [[unroll]] for (uint j = 0; j < BATCH - 1; j++) inputs[j] = state[first + j * p.channels];
    float total = 0.0;
    [[unroll]] for (uint j = 0; j < BATCH; j++) {
        if (position == 0 && j < BATCH - 1) inputs[j] = 0.0;
        total += weights[j] * inputs[j];
    }
    y[channel] = position < 0 ? 0.0 : total / (1.0 + exp(-total));
    if (position < 0) return;
    [[unroll]] for (uint j = 0; j < BATCH - 1; j++) state[first + j * p.channels] = inputs[j + 1];
}

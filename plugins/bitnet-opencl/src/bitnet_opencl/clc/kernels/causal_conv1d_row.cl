// causal_conv1d of one row (causal_conv1d.cl): y[c] = silu(sum_j weight[c, j] * x_j[c]) with the taps - 1 inputs of
// state[sequence] and then x, zeros in place of the state at position 0. A row with position < 0 produces zeros and
// leaves the state unchanged. TAPS is the number of taps: all inputs of a channel are loaded at once.
// Group: a work-item per channel.
KERNEL causal_conv1d_row(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, x);
    AT_IN(int, step);
    AT_IN(float, weight);
    AT_OUT(float, state);
    AT_OUT(float, y);
    const uint channel = get_global_id(0), mine = min(channel, channels - 1);
    float weights[TAPS], inputs[TAPS];
    UNROLL
    for (uint j = 0; j < TAPS; ++j) weights[j] = weight[(ulong)mine * TAPS + j];
    inputs[TAPS - 1] = x[mine];
    const int position = step[1];
    __global float *own = state + (ulong)max(step[3], 0) * (TAPS - 1) * channels + mine;
    UNROLL
    for (uint j = 0; j + 1 < TAPS; ++j) inputs[j] = own[(ulong)j * channels];
    if (channel >= channels) return;
    float total = 0;
    UNROLL
    for (uint j = 0; j < TAPS; ++j) {
        if (position == 0 && j + 1 < TAPS) inputs[j] = 0;
        total = fma(weights[j], inputs[j], total);
    }
    y[channel] = position < 0 ? 0.0f : total / (1.0f + exp(-total));
    if (position < 0) return;
    UNROLL
    for (uint j = 0; j + 1 < TAPS; ++j) own[(ulong)j * channels] = inputs[j + 1];
}

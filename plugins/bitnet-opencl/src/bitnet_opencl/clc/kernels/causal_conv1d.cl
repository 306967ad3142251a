// y[t, c] = silu(sum_j weight[c, j] * x[t - taps + 1 + j, c]), silu(a) = a / (1 + exp(-a)), over the inputs of the
// row's own sequence: earlier rows of the step, before them state[sequence], oldest first, and zeros before position 0.
// Then the last taps - 1 inputs are stored in the state. Rows with position < 0 produce zeros.
// x, y f32[rows, channels]; step i32[rows, 4]; weight f32[channels, taps]; state f32[sequences, taps - 1, channels].
// Group: TILE_N channels of all rows, divided among GROUP / TILE_N strips; all strips read the states before any writes
// one.
#define POSITION(t) step[4 * (t) + 1]
#define SEQUENCE(t) step[4 * (t) + 3]
#define STATE(t, j) state[((ulong)SEQUENCE(t) * (taps - 1) + (j)) * channels + channel]

// Returns the number of rows right before row t that belong to its sequence, at most taps - 1.
INLINE uint rows_behind(__global const int *step, uint t, uint taps) {
    uint count = 0;
    while (count + 1 < taps && t > count && SEQUENCE(t - count - 1) == SEQUENCE(t) && POSITION(t - count - 1) >= 0) ++count;
    return count;
}

// Returns the input `back` rows before row t.
INLINE float input(__global const float *x, __global const int *step, __global const float *state, uint t, uint back,
                   uint behind, uint taps, uint channels, uint channel) {
    if (back <= behind) return x[(ulong)(t - back) * channels + channel];
    return POSITION(t) == (int)behind ? 0.0f : STATE(t, taps - 1 + behind - back);
}
#define INPUT(back) input(x, step, state, t, back, behind, taps, channels, channel)

KERNEL causal_conv1d(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, x);
    AT_IN(int, step);
    AT_IN(float, weight);
    AT_SHARED(float, state);
    AT_OUT(float, y);
    const uint lid = get_local_id(0), channel = get_group_id(0) * TILE_N + lid % TILE_N;
    const uint strip = CEIL_DIV(rows, GROUP / TILE_N), first = lid / TILE_N * strip;
    const uint end = channel < channels ? min(first + strip, rows) : 0;
    for (uint t = first; t < end; ++t) {
        const uint behind = rows_behind(step, t, taps), used = POSITION(t) >= 0 ? taps : 0;
        float total = 0;
        for (uint j = 0; j < used; ++j) total = fma(weight[(ulong)channel * taps + j], INPUT(taps - 1 - j), total);
        y[(ulong)t * channels + channel] = total / (1.0f + exp(-total));
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (uint t = first; t < end; ++t) {
        const bool last = t + 1 == rows || POSITION(t + 1) < 0 || SEQUENCE(t + 1) != SEQUENCE(t);
        const uint behind = rows_behind(step, t, taps), kept = last && POSITION(t) >= 0 ? taps - 1 : 0;
        // Oldest first, so that no element is overwritten before it is read.
        for (uint j = 0; j < kept; ++j) STATE(t, j) = INPUT(taps - 2 - j);
    }
}

// y[t, c] = silu(sum_j weight[c, j] * x[t - taps + 1 + j, c]), silu(a) = a / (1 + exp(-a)), over the inputs of the
// row's own sequence: earlier rows of the step, before them state[sequence], oldest first, and zeros before position 0.
// Then the last taps - 1 inputs are stored in the state. Rows with position < 0 produce zeros. A workgroup has TILE_N
// channels of all rows, divided among GROUP / TILE_N strips; all strips read the states before any writes one.
// x, y f32[rows, channels]; step i32[rows, 4]; weight f32[channels, taps]; state f32[sequences, taps - 1, channels].
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> step: array<vec4<i32>>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> state: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

fn state_at(t: u32, j: u32, channel: u32) -> u32 {
    return (u32(step[t].w) * (p.taps - 1u) + j) * p.channels + channel;
}

fn is_before(t: u32, count: u32) -> bool { // whether row t - count - 1 belongs to row t's sequence
    if (t <= count) { return false; }
    let row = step[t - count - 1u];
    return row.w == step[t].w && row.y >= 0;
}

fn rows_behind(t: u32) -> u32 { // number of rows right before row t in its sequence, at most taps - 1
    var count = 0u;
    while (count + 1u < p.taps && is_before(t, count)) { count += 1u; }
    return count;
}

fn input(t: u32, back: u32, behind: u32, channel: u32) -> f32 { // `back` rows before row t
    if (back <= behind) { return x[(t - back) * p.channels + channel]; }
    if (step[t].y == i32(behind)) { return 0.0; }
    return state[state_at(t, p.taps - 1u + behind - back, channel)];
}

fn is_last(t: u32) -> bool { // whether row t is the last of its sequence in this step
    if (t + 1u == p.rows) { return true; }
    return step[t + 1u].y < 0 || step[t + 1u].w != step[t].w;
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let channel = group.x * TILE_N + thread % TILE_N;
    let strip = (p.rows * TILE_N + GROUP - 1u) / GROUP;
    let first = thread / TILE_N * strip;
    let end = select(0u, min(first + strip, p.rows), channel < p.channels);
    for (var t = first; t < end; t += 1u) {
        let behind = rows_behind(t);
        var total = 0.0;
        for (var j = 0u; j < p.taps && step[t].y >= 0; j += 1u) {
            total += weight[channel * p.taps + j] * input(t, p.taps - 1u - j, behind, channel);
        }
        y[t * p.channels + channel] = total / (1.0 + exp(-total));
    }
    storageBarrier();
    for (var t = first; t < end; t += 1u) {
        if (step[t].y < 0 || !is_last(t)) { continue; }
        let behind = rows_behind(t);
        for (var j = 0u; j + 1u < p.taps; j += 1u) { // oldest first, so that no element is overwritten before it is read
            state[state_at(t, j, channel)] = input(t, p.taps - 2u - j, behind, channel);
        }
    }
}

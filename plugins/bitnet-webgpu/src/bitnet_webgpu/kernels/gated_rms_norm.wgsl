// y[t, h'] = n(x[t, h]) * act(gate[t, h]) for each head h, with n(a) = a / sqrt(mean(a^2) + eps) * gamma (NORM 1) or a
// (NORM 0), act(a) = a / (1 + exp(-a)) (ACT 1) or 1 / (1 + exp(-a)) (ACT 2), and h' = h % groups * (n_heads / groups) +
// h / groups. One workgroup per head of a row. x, gate, y f32[rows, n_heads, head_dim]; gamma f32[head_dim].
#include "numbers.wgsl"
#include "reduce.wgsl"
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read> gamma: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

fn normed(at: u32, k: u32, factor: f32, bad: bool) -> f32 {
    if (NORM == 0u) { return x[at + k]; }
    return or_nan(x[at + k] * factor * gamma[k], bad);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y * p.n_heads;
    let at = (row + group.x) * p.head_dim;
    let to = (row + group.x % p.groups * (p.n_heads / p.groups) + group.x / p.groups) * p.head_dim;
    var mean = 0.0;
    if (NORM == 1u) {
        var sum = 0.0;
        for (var k = thread; k < p.head_dim; k += GROUP) { sum += x[at + k] * x[at + k]; }
        mean = group_sum_max(sum, 0u, thread).sum / f32(p.head_dim);
    }
    let factor = 1.0 / sqrt(mean + p.eps);
    let bad = is_bad(mean);
    for (var k = thread; k < p.head_dim; k += GROUP) {
        let a = gate[at + k];
        let act = select(1.0, a, ACT == 1u) / (1.0 + exp(-a));
        y[to + k] = or_nan(normed(at, k, factor, bad) * act, is_nan(a)); // exp may lose a NaN
    }
}

// y[l, :] = x[r, :] / sqrt(mean(x[r]^2) + eps) * gamma with r = index[l]; one workgroup per row. x f32[*, width]; index
// i32[rows]; gamma f32[width]; y f32[rows, width].
#include "numbers.wgsl"
#include "reduce.wgsl"
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> index: array<i32>;
@group(0) @binding(2) var<storage, read> gamma: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = u32(index[group.x]) * p.width;
    var sum = 0.0;
    for (var k = thread; k < p.width; k += GROUP) { sum += x[row + k] * x[row + k]; }
    let mean = group_sum_max(sum, 0u, thread).sum / f32(p.width);
    let factor = 1.0 / sqrt(mean + p.eps);
    let bad = is_bad(mean);
    for (var k = thread; k < p.width; k += GROUP) {
        y[group.x * p.width + k] = or_nan(x[row + k] * factor * gamma[k], bad);
    }
}

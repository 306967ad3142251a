// matmul_dense for few rows of x and a table of few rows (gates of delta nets), which would not occupy a GPU otherwise:
// y[l, y_first + n] = sum_k x[l, k] w[n, k] in f32; one workgroup per row of w and row of x. x f32[rows, width];
// w[outs, width] of DTYPE; y f32[rows, y_stride].
#include "dense.wgsl"
#include "reduce.wgsl"
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

fn table_word(i: u32) -> u32 { return w[i]; }

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    var sum = 0.0;
    for (var k = thread; k < p.width; k += GROUP) { sum += x[group.y * p.width + k] * element(group.x, k, p.width); }
    sum = group_sum_max(sum, 0u, thread).sum;
    if (thread == 0u) { y[group.y * p.y_stride + p.y_first + group.x] = sum; }
}

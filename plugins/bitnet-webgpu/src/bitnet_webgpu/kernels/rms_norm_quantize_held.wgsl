// rms_norm_quantize with one scale for a row, for widths that are multiples of four. Formula and shapes as in
// rms_norm_quantize.wgsl.
#include "numbers.wgsl"
#include "reduce.wgsl"
#include "quantize.wgsl"
#include "quantize_row_held.wgsl"
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> gamma: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> q: array<u32>;
@group(0) @binding(3) var<storage, read_write> scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> qsum: array<i32>;

fn value(row: u32, i: u32) -> vec4<f32> { return x[row * FOURS + i]; }

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    quantize_row(group.x, thread);
}

// y = x / sqrt(mean(x^2) + eps) * gamma (NORM 1) or x (NORM 0), then quantized (quantize.wgsl); one workgroup per row.
// x f32[rows, width]; gamma f32[width]; q i8[rows, stride]; scale f32, qsum i32 [rows] or [rows, stride / 32].
#include "numbers.wgsl"
#include "reduce.wgsl"
#include "quantize.wgsl"
#include "quantize_row.wgsl"
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gamma: array<f32>;
@group(0) @binding(2) var<storage, read_write> q: array<u32>;
@group(0) @binding(3) var<storage, read_write> scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> qsum: array<i32>;

fn value(row: u32, k: u32) -> f32 { return x[row * p.width + k]; }

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    quantize_row(group.x, thread);
}

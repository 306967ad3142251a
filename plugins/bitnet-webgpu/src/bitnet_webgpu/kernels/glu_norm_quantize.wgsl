// m = act(gate) * up of gate_up = [gate | up] (gate.wgsl), normed if NORM is 1, then quantized (quantize.wgsl); one
// workgroup per row. gate_up f32[rows, 2 width]; gamma f32[width]; q i8[rows, stride]; scale f32, qsum i32 [rows] or
// [rows, stride / 32].
#include "numbers.wgsl"
#include "reduce.wgsl"
#include "gate.wgsl"
#include "quantize.wgsl"
#include "quantize_row.wgsl"
@group(0) @binding(0) var<storage, read> gate_up: array<f32>;
@group(0) @binding(1) var<storage, read> gamma: array<f32>;
@group(0) @binding(2) var<storage, read_write> q: array<u32>;
@group(0) @binding(3) var<storage, read_write> scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> qsum: array<i32>;

fn value(row: u32, k: u32) -> f32 {
    let at = row * 2u * p.width + k;
    return gated(gate_up[at], gate_up[at + p.width]);
}

@compute @workgroup_size(GROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    quantize_row(group.x, thread);
}
